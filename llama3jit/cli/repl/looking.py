"""Looking at a conversation: its turns, its tokens, what may come next, what it cost."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

from llama3jit.cli.repl.rendering import say
from llama3jit.cli.repl.settings import context_line, whole_number
from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    from llama3jit.cli.repl.conversation import Talk

MAX_PROBS = 1000


def turns(count: int) -> str:
    """ "1 turn", "2 turns"."""
    return f"{count} turn" if count == 1 else f"{count} turns"


def history(talk: Talk, rest: str) -> None:
    """/history: what was said."""
    found = talk.conversation.turns()
    if not found:
        say("nothing has been said yet")
    for turn in found[-whole_number(rest, len(found) or 1) :]:
        for message in turn:
            mark = "> " if message["role"] == "user" else ""
            say(f"{mark}{message.get('content', '')}".replace("\n", f"\n{mark}"))


def stats(talk: Talk, rest: str) -> None:
    """/stats: the last reply, the context, memory."""
    from llama3jit.cli.loading import describe

    if talk.last is not None:
        result = talk.last
        say(describe(result.stats, result.prompt_tokens, result.completion_tokens))
    said = turns(len(talk.conversation.turns()))
    say(f"context {context_line(talk)}, {said}")
    megabytes = sum(talk.llm.memory.values()) / 1e6
    say(f"device {talk.llm.device}, {megabytes:.1f} MB there{_peak()}")


def template(talk: Talk, rest: str) -> None:
    """/template: the rendered prompt."""
    say(talk.llm.render_chat(_prompt(talk)))


def tokens(talk: Talk, rest: str) -> None:
    """/tokens TEXT: ids and pieces."""
    if not rest:
        raise InvalidArgumentError("expected a text: /tokens TEXT")
    ids = talk.llm.tokenize(rest, add_bos=False)
    say("\n".join(f"{index:>7}  {_piece(talk, index)}" for index in ids))
    say(f"{len(ids)} tokens")


def probs(talk: Talk, rest: str) -> None:
    """/probs [N] [TEXT]: the likeliest tokens after what stands, before any sampling."""
    import numpy as np

    count, text = 10, rest
    first, _, more = rest.partition(" ")
    if first.isdecimal():
        count, text = min(whole_number(first, 10), MAX_PROBS), more.strip()
    ids = _ids_so_far(talk, text)
    row = talk.llm.logits(ids, first=len(ids) - 1)[0].astype(np.float64)
    row -= row.max()
    shares = np.exp(row) / np.exp(row).sum()
    for index in np.argsort(-shares, kind="stable")[:count]:
        say(f"{100 * shares[index]:6.2f} %  {index:>7}  {_piece(talk, int(index))}")


def _ids_so_far(talk: Talk, text: str) -> list[int]:
    """The prompt up to where the reply to `text` begins; without one, up to where the last reply
    ends, as text that could go on."""
    conversation = talk.conversation
    if text:
        return talk.llm.tokenize_chat(conversation.prompt({"role": "user", "content": text}))
    prompt = _prompt(talk)
    if prompt[-1]["role"] != "assistant":
        return talk.llm.tokenize_chat(prompt)
    reply = str(prompt[-1].get("content", ""))
    return talk.llm.tokenize_chat(prompt[:-1]) + talk.llm.tokenize(reply, add_bos=False)


def _prompt(talk: Talk) -> list[Any]:
    prompt = list(talk.conversation.prompt())
    if not talk.conversation.messages:
        raise InvalidArgumentError("nothing has been said yet: say something first")
    return prompt


def _piece(talk: Talk, index: int) -> str:
    return json.dumps(talk.llm.detokenize([index]), ensure_ascii=False)


def _peak() -> str:
    """The most memory that this process has had, where the system tells."""
    try:
        resource: Any = import_module("resource")
    except ImportError:
        return ""
    import sys

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"; peak memory {most / (1e6 if sys.platform == 'darwin' else 1e3):.0f} MB"
