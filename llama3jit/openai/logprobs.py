"""Log-probabilities in OpenAI's two shapes: those of completions and those of chats."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from llama3jit.engine.engine import Engine
    from llama3jit.results import StreamPart
    from llama3jit.text.tokenizer import Tokenizer

    TopLogprobs = list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Entry:
    """A token, where it begins in the text, in characters, its logprob and those of the likeliest;
    None for the first token of a prompt, which nothing predicts."""

    token: int
    start: int
    logprob: float | None
    top: TopLogprobs


class TokenLog:
    """The tokens of a reply as they come; `take` gives those of the text that was shown.

    `strips_space`: a SentencePiece space at the start is no part of the text. `start`: where the
    reply begins. `shown`: special tokens whose text is shown.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        start: int = 0,
        strips_space: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._hidden = frozenset(tokenizer.special_ids) - shown
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strips_space = strips_space
        self._entries: list[Entry] = []
        self._first = self._end = start

    @property
    def end(self) -> int:
        """Where the text of all tokens ends, as far as its characters are whole."""
        return self._end

    def add(self, part: StreamPart) -> None:
        """Take in the token of a part."""
        if part.token is not None:
            self.add_token(part.token, part.logprob, part.top_logprobs or [])

    def add_token(self, token: int, logprob: float | None, top: TopLogprobs) -> None:
        """Take in a token."""
        self._entries.append(Entry(token, self._end, logprob, top))
        if token in self._hidden:
            return
        data = self._tokenizer.token_bytes(token)
        if self._strips_space:
            data, self._strips_space = data.removeprefix(b" "), False
        self._end += len(self._decoder.decode(data))

    def take(self, shown: int, *, last: bool = False) -> list[Entry]:
        """The tokens, not taken before, that begin in the first `shown` characters of the reply;
        with `last` all, unless the text was cut before the end of the tokens."""
        end = self._first + shown
        if last and end >= self._end:
            taken, self._entries = self._entries, []
            return taken
        count = sum(entry.start < end for entry in self._entries)
        taken, self._entries = self._entries[:count], self._entries[count:]
        return taken


def completion_logprobs(entries: Iterable[Entry], tokenizer: Tokenizer) -> dict[str, Any]:
    """The shape of create_completion. A token that is no whole text shows as `bytes:\\xe4\\xbd`, so
    that different tokens stay apart."""
    text = partial(_text, tokenizer)
    entries = list(entries)
    return {
        "tokens": [text(entry.token) for entry in entries],
        "text_offset": [entry.start for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [
            None
            if entry.logprob is None
            else {
                **{text(token): value for token, value in entry.top},
                text(entry.token): entry.logprob,
            }
            for entry in entries
        ],
    }


def chat_logprobs(entries: Iterable[Entry], tokenizer: Tokenizer) -> dict[str, Any]:
    """The shape of create_chat_completion: `bytes` are those of the token, raw, while `token` shows
    what is no UTF-8 as U+FFFD."""

    def shape(token: int, logprob: float | None) -> dict[str, Any]:
        return {
            "token": tokenizer.piece(token),
            "bytes": list(tokenizer.token_bytes(token)),
            "logprob": logprob,
        }

    content = [
        {
            **shape(entry.token, entry.logprob),
            "top_logprobs": [shape(token, value) for token, value in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def prompt_entries(
    engine: Engine, tokenizer: Tokenizer, tokens: list[int], top: int
) -> tuple[list[Entry], int]:
    """The tokens of a prompt but BOS, as those before predict them, and where its text ends."""
    from llama3jit.engine.sampler import logprob, top_logprobs
    from llama3jit.scoring import show_logits

    found: list[tuple[float, TopLogprobs]] = []

    def visit(first: int, rows: NDArray[np.float32]) -> None:
        for row, token in zip(rows, tokens[first + 1 : first + 1 + len(rows)], strict=False):
            found.append((logprob(row, token), top_logprobs(row, top) if top else []))

    show_logits(engine, tokens, visit)
    log = TokenLog(
        tokenizer,
        strips_space=tokenizer.add_space_prefix,
        shown=frozenset(tokenizer.special_ids),
    )
    skipped = 1 if tokens[:1] == [tokenizer.bos_id] else 0
    for at, token in enumerate(tokens[skipped:], skipped):
        value, likeliest = found[at - 1] if at > skipped else (None, [])
        log.add_token(token, value, likeliest)
    return log.take(log.end, last=True), log.end


def _text(tokenizer: Tokenizer, token: int) -> str:
    data = tokenizer.token_bytes(token)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
