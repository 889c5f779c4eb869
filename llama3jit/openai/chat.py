"""create_chat_completion: replies in OpenAI's shape, with llama-cpp-python's arguments."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llama3jit.checks import check_whole
from llama3jit.errors import InvalidArgumentError, UnsupportedError
from llama3jit.generation import chat_generation
from llama3jit.openai.arguments import MOST_CHOICES, check_flag, sampling_of, seeded
from llama3jit.openai.choices import interleaved, usage_of
from llama3jit.openai.tools import Tools, encoder, forced_format, read_tools, shown_marks
from llama3jit.text.tool_calls import Piece, TextPiece, ToolCallParser

if TYPE_CHECKING:
    from llama3jit.api import Llama
    from llama3jit.arguments import Messages, Sampling
    from llama3jit.generation import Parts
    from llama3jit.openai.logprobs import Entry, TokenLog
    from llama3jit.results import Result, StreamPart

    Answer = dict[str, Any]


def create_chat_completion(
    llm: Llama,
    messages: Messages,
    functions: Sequence[Mapping[str, Any]] | None = None,
    function_call: str | Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None,
    tool_choice: str | Mapping[str, Any] | None = None,
    temperature: float = 0.2,
    top_p: float = 0.95,
    top_k: int = 40,
    min_p: float = 0.05,
    typical_p: float = 1.0,
    stream: bool = False,
    stop: str | Sequence[str] | None = None,
    seed: int | None = None,
    response_format: Mapping[str, Any] | None = None,
    max_tokens: int | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repeat_penalty: float = 1.0,
    tfs_z: float = 1.0,
    mirostat_mode: int = 0,
    mirostat_tau: float = 5.0,
    mirostat_eta: float = 0.1,
    model: str | None = None,
    logits_processor: Any = None,
    grammar: Any = None,
    logit_bias: Mapping[int, float] | None = None,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    *,
    n: int = 1,
    **sampling: Any,
) -> Answer | Iterator[Answer]:
    """Answer a conversation as llama-cpp-python does: a dict in OpenAI's shape, or with `stream` an
    iterator of such.

    tools: what the model may call, as OpenAI has them; calls come back in `tool_calls`, with
    finish_reason "tool_calls".  tool_choice: "none", "auto", "required", or one by name: the reply
    then keeps to a call's schema.  functions, function_call: their old forms.  response_format: see
    make_constraint.  top_logprobs: so many of the likeliest tokens beside each, with logprobs.
    model: the name in the answer.  n: how many replies, each with a seed of its own.  sampling:
    more arguments of `chat`.  See docs/openai.md; raises as `chat` does.
    """
    arguments = sampling_of({**locals()}, sampling, llm._defaults)
    check_whole("n", n, 1, MOST_CHOICES)
    check_flag("stream", stream)
    if check_flag("logprobs", logprobs):
        top = 0 if top_logprobs is None else top_logprobs
        arguments["logprobs"] = True
        arguments["top_logprobs"] = check_whole("top_logprobs", top, 0, llm.vocab_size)
    elif top_logprobs is not None:
        raise InvalidArgumentError("top_logprobs is given without logprobs=True")
    found = read_tools(functions, function_call, tools, tool_choice)
    if found.forced:
        if "response_format" in arguments:
            raise InvalidArgumentError(
                "tool_choice asks for a call, and response_format or grammar for another text: "
                "leave one out"
            )
        arguments["response_format"] = forced_format(llm, found)
    choices = [
        _Choice.start(llm, index, messages, seeded(arguments, index), found) for index in range(n)
    ]
    head = {
        "id": f"chatcmpl-{uuid.uuid4()}",
        "object": "chat.completion.chunk" if stream else "chat.completion",
        "created": int(time.time()),
        "model": llm._defaults.model if model is None else model,
    }
    return _stream(head, choices) if stream else _whole(head, choices)


def create_chat_completion_openai_v1(llm: Llama, *args: Any, **kwargs: Any) -> Any:
    """The same as objects of the package openai: a ChatCompletion, or an iterator of
    ChatCompletionChunk. Raises UnsupportedError where that package is missing."""
    try:
        from openai.types.chat import ChatCompletion, ChatCompletionChunk
    except ImportError:
        raise UnsupportedError(
            "create_chat_completion_openai_v1 needs the package openai: pip install openai"
        ) from None
    answer = create_chat_completion(llm, *args, **kwargs)
    if isinstance(answer, dict):
        return ChatCompletion(**answer)
    return (ChatCompletionChunk(**chunk) for chunk in answer)


def _whole(head: Answer, choices: list[_Choice]) -> Answer:
    with closing(interleaved([choice.parts for choice in choices])) as parts:
        for index, part in parts:
            choices[index].take(part)
    results = [choice.result() for choice in choices]
    done = [
        {
            "index": choice.index,
            "message": choice.message(),
            "logprobs": choice.logprobs(choice.entries),
            "finish_reason": choice.finish_reason(),
        }
        for choice in choices
    ]
    return {**head, "choices": done, "usage": usage_of(results[0].prompt_tokens, results)}


def _stream(head: Answer, choices: list[_Choice]) -> Iterator[Answer]:
    for choice in choices:
        yield {**head, "choices": [choice.chunk({"role": "assistant"}, [], None)]}
    with closing(interleaved([choice.parts for choice in choices])) as parts:
        for index, part in parts:
            choice = choices[index]
            for piece in choice.take(part):
                entries, choice.entries = choice.entries, []
                yield {**head, "choices": [choice.chunk(choice.delta(piece), entries, None)]}
            if choice.last is not None:
                final = choice.chunk({}, choice.entries, choice.finish_reason())
                yield {**head, "choices": [final]}


@dataclass(slots=True)
class _Choice:
    """One reply under way; `entries` are its tokens that were not given out yet."""

    index: int
    llm: Llama
    tools: Tools
    parts: Parts
    parser: ToolCallParser | None
    log: TokenLog | None
    shown: int = 0
    texts: list[str] = field(default_factory=list)
    calls: list[Answer] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    last: Result | None = None

    @classmethod
    def start(
        cls, llm: Llama, index: int, messages: Messages, sampling: Sampling, tools: Tools
    ) -> _Choice:
        """Check everything; work begins with the first part."""
        from llama3jit.openai.logprobs import TokenLog

        shown = shown_marks(llm, tools)
        encode = encoder(llm, tools, messages)
        generation = chat_generation(llm, messages, sampling, encode, shown)
        log = None
        if sampling.get("logprobs"):
            strips = llm._tokenizer.add_space_prefix and generation.request.constraint is None
            log = TokenLog(llm._tokenizer, strips_space=strips, shown=shown)
        parser = ToolCallParser(tools.names) if tools.tools else None
        return cls(index, llm, tools, generation.parts(), parser, log)

    def take(self, part: StreamPart) -> list[Piece]:
        """What a part of the reply makes certain of its texts and calls."""
        self.last = part.result
        self.shown += len(part.text)
        if self.log is not None:
            self.log.add(part)
            self.entries += self.log.take(self.shown, last=self.last is not None)
        if self.parser is None:
            pieces: list[Piece] = [TextPiece(part.text)] if part.text else []
        else:
            pieces = self.parser.push(part.text)
            pieces += self.parser.finish() if self.last is not None else []
        for piece in pieces:
            self._keep(piece)
        return pieces

    def _keep(self, piece: Piece) -> None:
        if isinstance(piece, TextPiece):
            self.texts.append(piece.text)
            return
        if piece.name is not None:
            function = {"name": piece.name, "arguments": ""}
            identity = f"call_{uuid.uuid4().hex[:24]}"
            self.calls.append({"id": identity, "type": "function", "function": function})
        self.calls[piece.index]["function"]["arguments"] += piece.arguments

    def result(self) -> Result:
        assert self.last is not None
        return self.last

    def message(self) -> Answer:
        text = "".join(self.texts)
        message: Answer = {"role": "assistant", "content": text}
        if self.calls:
            message["content"] = text or None
            message["tool_calls"] = self.calls
            if self.tools.legacy:
                message["function_call"] = self.calls[0]["function"]
        return message

    def delta(self, piece: Piece) -> Answer:
        """A piece as a stream has it: the id and the name of a call come once."""
        if isinstance(piece, TextPiece):
            return {"content": piece.text}
        function: Answer = {"arguments": piece.arguments}
        call: Answer = {"index": piece.index, "function": function}
        if piece.name is not None:
            function["name"] = piece.name
            call.update(id=self.calls[piece.index]["id"], type="function")
        delta: Answer = {"tool_calls": [call]}
        if self.tools.legacy and piece.index == 0:
            delta["function_call"] = dict(function)
        return delta

    def chunk(self, delta: Answer, entries: list[Entry], reason: str | None) -> Answer:
        logprobs = self.logprobs(entries) if entries else None
        return {
            "index": self.index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
        }

    def logprobs(self, entries: list[Entry]) -> Answer | None:
        from llama3jit.openai.logprobs import chat_logprobs

        return None if self.log is None else chat_logprobs(entries, self.llm._tokenizer)

    def finish_reason(self) -> str:
        """ "stop", "length", "tool_calls"; "function_call" if the tools came as functions."""
        reason = self.result().finish_reason
        if reason != "stop" or not self.calls:
            return reason
        return "function_call" if self.tools.legacy else "tool_calls"
