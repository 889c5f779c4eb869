"""create_completion: texts that go on, in OpenAI's shape and with llama-cpp-python's arguments."""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llama3jit.arguments import as_ids
from llama3jit.checks import check_whole
from llama3jit.generation import text_generation
from llama3jit.openai.arguments import MOST_CHOICES, check_flag, sampling_of, seeded
from llama3jit.openai.choices import interleaved, usage_of
from llama3jit.openai.infill import infill_ids

if TYPE_CHECKING:
    from llama3jit.api import Llama
    from llama3jit.arguments import Prompt, Sampling
    from llama3jit.generation import Parts
    from llama3jit.openai.logprobs import Entry, TokenLog
    from llama3jit.results import Result, StreamPart

    Answer = dict[str, Any]


def create_completion(
    llm: Llama,
    prompt: Prompt,
    suffix: str | None = None,
    max_tokens: int | None = 16,
    temperature: float = 0.8,
    top_p: float = 0.95,
    min_p: float = 0.05,
    typical_p: float = 1.0,
    logprobs: int | None = None,
    echo: bool = False,
    stop: str | Sequence[str] | None = None,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    repeat_penalty: float = 1.0,
    top_k: int = 40,
    stream: bool = False,
    seed: int | None = None,
    tfs_z: float = 1.0,
    mirostat_mode: int = 0,
    mirostat_tau: float = 5.0,
    mirostat_eta: float = 0.1,
    model: str | None = None,
    stopping_criteria: Any = None,
    logits_processor: Any = None,
    grammar: Any = None,
    logit_bias: Mapping[int, float] | None = None,
    *,
    n: int = 1,
    **sampling: Any,
) -> Answer | Iterator[Answer]:
    """Continue a text, or token ids, as llama-cpp-python does: a dict in OpenAI's shape, or with
    `stream` an iterator of such. Special tokens written in the text are those tokens.

    suffix: what comes after, for models that fill in.  max_tokens: None, or 0 and less, go on to
    the end of the context.  logprobs: how many of the likeliest tokens to report beside each.
    echo: the prompt goes before the text, and its tokens before the logprobs.  model: the name in
    the answer.  n: how many texts, each with a seed of its own.  sampling: more arguments of
    `generate`.  See docs/openai.md; raises as `generate` does.
    """
    arguments = sampling_of({**locals()}, sampling, llm._defaults)
    check_whole("n", n, 1, MOST_CHOICES)
    check_flag("stream", stream)
    if logprobs is not None:
        top = check_whole("logprobs", logprobs, 0, llm.vocab_size)
        arguments["logprobs"], arguments["top_logprobs"] = True, top
    ids = _ids_of(llm, prompt, suffix)
    before = prompt if isinstance(prompt, str) else _text_of(llm, ids)
    choices = [
        _Choice.start(llm, index, ids, seeded(arguments, index), logprobs, len(before))
        for index in range(n)
    ]
    if check_flag("echo", echo):
        entries, end = _echoed(llm, ids, logprobs)
        for choice in choices:
            choice.before, choice.before_entries = before, entries
            choice.move(end)
    head: Answer = {
        "id": f"cmpl-{uuid.uuid4()}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": llm._defaults.model if model is None else model,
    }
    return _stream(head, choices) if stream else _whole(head, choices, len(ids))


def _ids_of(llm: Llama, prompt: Prompt, suffix: str | None) -> list[int]:
    if suffix is not None:
        return infill_ids(llm, prompt, suffix)
    if not isinstance(prompt, str):
        return as_ids(prompt)
    ids = list(llm._tokenizer.encode(prompt, add_eos=False, parse_special=True))
    if not ids and llm._tokenizer.bos_id is not None:
        return [llm._tokenizer.bos_id]  # nothing to go on from, as llama-cpp-python has it
    return ids


def _text_of(llm: Llama, ids: list[int]) -> str:
    return llm.detokenize(ids[1:] if ids[:1] == [llm._tokenizer.bos_id] else ids)


def _echoed(llm: Llama, ids: list[int], logprobs: int | None) -> tuple[list[Entry], int]:
    """The tokens of a prompt if they are wanted, and where its text ends."""
    from llama3jit.openai.logprobs import prompt_entries

    if logprobs is None:
        return [], 0
    return prompt_entries(llm._engine, llm._tokenizer, ids, logprobs)


def _whole(head: Answer, choices: list[_Choice], prompt_tokens: int) -> Answer:
    texts: list[list[str]] = [[] for _ in choices]
    entries: list[list[Entry]] = [[] for _ in choices]
    for index, text, found in _pieces(choices):
        texts[index].append(text)
        entries[index].extend(found)
    results = [choice.result() for choice in choices]
    done = [
        choice.shape("".join(text), found, choice.result().finish_reason)
        for choice, text, found in zip(choices, texts, entries, strict=True)
    ]
    return {**head, "choices": done, "usage": usage_of(prompt_tokens, results)}


def _stream(head: Answer, choices: list[_Choice]) -> Iterator[Answer]:
    with closing(_pieces(choices)) as pieces:
        for index, text, found in pieces:
            choice = choices[index]
            if text or found:
                yield {**head, "choices": [choice.shape(text, found, None)]}
            if choice.done:
                yield {**head, "choices": [choice.shape("", None, choice.result().finish_reason)]}


def _pieces(choices: list[_Choice]) -> Generator[tuple[int, str, list[Entry]], None, None]:
    """The texts of all choices as they come, with the tokens that begin in them."""
    for choice in choices:
        if choice.before:
            yield choice.index, choice.before, choice.before_entries
    with closing(interleaved([choice.parts for choice in choices])) as parts:
        for index, part in parts:
            yield index, part.text, choices[index].take(part)


@dataclass(slots=True)
class _Choice:
    """One text under way."""

    index: int
    parts: Parts
    llm: Llama
    log: TokenLog | None
    shown: int = 0  # characters of the reply
    before: str = ""
    before_entries: list[Entry] = field(default_factory=list)
    last: Result | None = None

    @classmethod
    def start(
        cls,
        llm: Llama,
        index: int,
        ids: list[int],
        sampling: Sampling,
        logprobs: int | None,
        begin: int,
    ) -> _Choice:
        """Check everything; work begins with the first part."""
        from llama3jit.openai.logprobs import TokenLog

        parts = text_generation(llm, ids, sampling).parts()
        log = None if logprobs is None else TokenLog(llm._tokenizer, start=begin)
        return cls(index, parts, llm, log)

    def move(self, begin: int) -> None:
        """Count from here where the tokens of the reply begin."""
        from llama3jit.openai.logprobs import TokenLog

        if self.log is not None:
            self.log = TokenLog(self.llm._tokenizer, start=begin)

    def take(self, part: StreamPart) -> list[Entry]:
        """The tokens whose text a part begins to show."""
        self.last = part.result
        self.shown += len(part.text)
        if self.log is None:
            return []
        self.log.add(part)
        return self.log.take(self.shown, last=self.done)

    @property
    def done(self) -> bool:
        return self.last is not None

    def result(self) -> Result:
        assert self.last is not None
        return self.last

    def shape(self, text: str, entries: list[Entry] | None, reason: str | None) -> Answer:
        from llama3jit.openai.logprobs import completion_logprobs

        logprobs = None
        if self.log is not None and entries is not None:
            logprobs = completion_logprobs(entries, self.llm._tokenizer)
        return {"text": text, "index": self.index, "logprobs": logprobs, "finish_reason": reason}
