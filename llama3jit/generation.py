"""A request from its prompt to its result, part by part, for threads and for event loops."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llama3jit.arguments import split_sampling
from llama3jit.guides import make_guides
from llama3jit.overflow import Fitted, fit_messages, fit_tokens, room_for_reply, shifts
from llama3jit.results import Result, StreamPart, make_stats

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

    from llama3jit.api import Llama
    from llama3jit.arguments import Messages, Prompt, Sampling
    from llama3jit.engine.engine import Engine, Handle
    from llama3jit.engine.sequence import Request, TokenEvent
    from llama3jit.text.streaming import TextStream

    Parts = Generator[StreamPart, None, None]
    AsyncParts = AsyncGenerator[StreamPart, None]


@dataclass(frozen=True, slots=True)
class Generation:
    """A request that was checked and not yet submitted, and what its tokens become; for one run,
    by `parts` or by `async_parts`."""

    engine: Engine
    request: Request
    text: TextStream
    prompt: Fitted
    load_s: float
    texts: list[str] = field(default_factory=list)
    events: list[TokenEvent] = field(default_factory=list)

    def parts(self) -> Parts:
        """A part for each token, and a last one with the result. Closing it cancels the rest."""
        handle = self.engine.submit(self.request)
        try:
            for event in handle:
                yield self._part(event)
                if self.text.stopped:
                    break
        finally:
            handle.cancel()
        yield self._last(handle)

    async def async_parts(self) -> AsyncParts:
        """The same in the running event loop; a task that is cancelled while it waits for a part,
        or that leaves its `async for`, cancels the rest."""
        handle = self.engine.submit(self.request)
        try:
            while (event := await handle.next()) is not None:
                yield self._part(event)
                if self.text.stopped:
                    break
        finally:
            handle.cancel()
        yield self._last(handle)

    def _part(self, event: TokenEvent) -> StreamPart:
        self.events.append(event)
        self.texts.append(self.text.push(event.token))
        return StreamPart(
            self.texts[-1], event.token, logprob=event.logprob, top_logprobs=event.top_logprobs
        )

    def _last(self, handle: Handle) -> StreamPart:
        self.texts.append(self.text.finish())
        by_length = handle.finish is not None and handle.finish.reason == "length"
        result = Result(
            text="".join(self.texts),
            tokens=[event.token for event in self.events],
            finish_reason="length" if by_length and not self.text.stopped else "stop",
            prompt_tokens=len(self.request.tokens),
            completion_tokens=len(self.events),
            seed=handle.seed,
            stats=make_stats(
                load_s=self.load_s,
                submitted=handle.submitted,
                admitted=handle.admitted,
                token_times=[event.time for event in self.events],
                prompt_tokens=len(self.request.tokens),
                cached_tokens=handle.prefix_tokens,
            ),
            logprobs=(
                [event.logprob or 0.0 for event in self.events]
                if self.request.params.logprobs
                else None
            ),
            top_logprobs=(
                [event.top_logprobs or [] for event in self.events]
                if self.request.params.top_logprobs
                else None
            ),
            dropped_turns=self.prompt.dropped_turns,
            dropped_tokens=self.prompt.dropped_tokens,
        )
        return StreamPart(self.texts[-1], None, result)


def make_generation(
    llm: Llama,
    prompt: Fitted,
    sampling: Sampling,
    *,
    continues: bool,
    shown: frozenset[int] = frozenset(),
) -> Generation:
    """Check a prompt and its sampling arguments; raises what is wrong with them. `continues`: the
    reply goes on with the prompt's text. `shown`: special tokens whose text is shown."""
    from llama3jit.engine.sequence import Request
    from llama3jit.text.streaming import TextStream

    params, stop = split_sampling(sampling)
    guides = make_guides(sampling, params, stop, llm._tokenizer)
    request = Request(prompt.tokens, params, frozenset(llm._tokenizer.end_ids), **guides)
    llm._engine.check(request)
    # A grammar is of the text as it is, with the space that it may begin with.
    continues = continues or request.constraint is not None
    text = TextStream(llm._tokenizer, stop, continues=continues, shown=shown)
    return Generation(llm._engine, request, text, prompt, llm._load_s)


def text_generation(llm: Llama, prompt: Prompt, sampling: Sampling) -> Generation:
    """What continues a text or ids."""
    fitted = Fitted(llm._prompt_ids(prompt))
    if shifts(sampling, llm._on_overflow):
        room = room_for_reply(llm.n_ctx, sampling.get("max_tokens"))
        fitted = fit_tokens(fitted.tokens, llm.n_ctx, room, llm._tokenizer.bos_id)
    return make_generation(llm, fitted, sampling, continues=True)


def chat_generation(
    llm: Llama,
    messages: Messages,
    sampling: Sampling,
    encode: Callable[[Messages], list[int]] | None = None,
    shown: frozenset[int] = frozenset(),
) -> Generation:
    """What answers a conversation; `encode` makes a prompt of it, else the template does."""
    encode = encode or llm._template.encode
    if shifts(sampling, llm._on_overflow):
        room = room_for_reply(llm.n_ctx, sampling.get("max_tokens"))
        fitted = fit_messages(messages, encode, llm.n_ctx, room)
    else:
        fitted = Fitted(encode(messages))
    return make_generation(llm, fitted, sampling, continues=False, shown=shown)


def last(parts: Parts) -> Result:
    """The result that parts end with."""
    result: Result | None = None
    for part in parts:
        result = part.result
    assert result is not None
    return result


async def async_last(parts: AsyncParts) -> Result:
    """The result that parts end with."""
    result: Result | None = None
    async for part in parts:
        result = part.result
    assert result is not None
    return result
