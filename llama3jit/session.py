"""Conversations that remember their turns: `Session`, made by `Llama.session`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import aclosing, closing, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Unpack

from llama3jit.arguments import split_sampling
from llama3jit.checks import check_whole
from llama3jit.errors import InvalidArgumentError, SessionError
from llama3jit.generation import async_last, last, make_generation
from llama3jit.guides import make_guides
from llama3jit.overflow import Fitted, fit_messages, room_for_reply, shifts, split_turns
from llama3jit.talk import Talk, Turn, continued

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike
    from types import TracebackType

    from llama3jit.api import Llama
    from llama3jit.arguments import Message, Messages, Sampling
    from llama3jit.generation import AsyncParts, Parts
    from llama3jit.results import Result


class Session:
    """A conversation with one model, turn by turn.

    What the model read and wrote stays in its cache as long as there is room, so that a turn costs
    its own tokens. One turn at a time: a second one meanwhile raises SessionError, and so does any
    call after `close`. A turn that fails leaves the session as it was before it.
    """

    def __init__(self, llm: Llama, talk: Talk, sampling: Sampling) -> None:
        params, stop = split_sampling(sampling)
        if not isinstance(sampling.get("stop"), str | Sequence | None):
            sampling = {**sampling, "stop": stop}  # an iterator would be empty for the next turn
        make_guides(sampling, params, stop, llm._tokenizer)  # says what is wrong
        self._llm = llm
        self._talk = talk
        self._sampling = sampling
        self._lock = threading.Lock()  # guards what follows
        self._answering = False
        self._closed = False

    @property
    def messages(self) -> list[Message]:
        """A copy of the conversation: {"role": ..., "content": ...}, the system prompt first."""
        return [dict(message) for message in self._talk.messages]

    @property
    def n_tokens(self) -> int:
        """Tokens of the context that the conversation takes, as of the last turn."""
        return len(self._talk.tokens)

    @property
    def left_out_turns(self) -> int:
        """How many of the oldest turns are no longer shown to the model (on_overflow="shift")."""
        return self._talk.left_out_turns

    def say(self, text: str, **sampling: Unpack[Sampling]) -> Result:
        """The answer to a message; `sampling` is for this turn. Raises what `Llama.chat` raises.
        KeyboardInterrupt takes the turn back: to keep what there is of a reply, use stream."""
        return last(self._parts(self._begin(text, sampling), keep=False))

    def stream(self, text: str, **sampling: Unpack[Sampling]) -> Parts:
        """Like say, as it goes; see `Llama.stream`. The turn counts once its last part is given
        out. Closing the iterator, or Ctrl-C, ends the reply where it is, and what there is of it
        stays in the conversation; if there is nothing, the turn is taken back."""
        return self._parts(self._begin(text, sampling), keep=True)

    async def asay(self, text: str, **sampling: Unpack[Sampling]) -> Result:
        """Like say, in an event loop. Cancelling the task takes the turn back."""
        return await async_last(self._async_parts(self._begin(text, sampling), keep=False))

    def astream(self, text: str, **sampling: Unpack[Sampling]) -> AsyncParts:
        """Like stream, for `async for`; see `Llama.astream`."""
        return self._async_parts(self._begin(text, sampling), keep=True)

    def fork(self) -> Session:
        """Another session that goes on from the same turns, without that under way."""
        self._check_open()
        return Session(self._llm, self._talk, self._sampling)

    def rewind(self, turns: int = 1) -> list[Message]:
        """Take back the last turns, a turn being a message of the user and what follows it; gives
        the messages that were removed. Raises InvalidArgumentError if there are not so many."""
        with self._idle():
            talk = self._talk
            head, all_turns = split_turns(talk.messages)
            check_whole("turns", turns, 0)
            n_kept = len(all_turns) - turns
            if n_kept < 0:
                raise InvalidArgumentError(
                    f"turns is {turns}; the session has {len(all_turns)} to take back"
                )
            marks = talk.marks[: max(0, len(talk.marks) - turns)]
            self._talk = Talk(
                messages=(*head, *chain.from_iterable(all_turns[:n_kept])),
                tokens=talk.tokens[: marks[-1]] if marks else (),
                marks=marks,
            )
            return list(chain.from_iterable(all_turns[n_kept:]))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the conversation, and what the cache holds of it, to a file that `load_session`
        goes on from; whole or not at all, for the owner's eyes alone. Sampling arguments that are
        functions are not in it. Raises SessionError when it cannot be written."""
        from llama3jit.session_file import write_session

        with self._idle():
            write_session(path, self._llm, self._talk, self._sampling)

    def close(self) -> None:
        """Forget the conversation; may be called twice. A turn under way goes on."""
        with self._lock:
            self._closed = True
            self._talk = Talk()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self, text: str, sampling: Sampling) -> Turn:
        """Check a turn and lay out its prompt."""
        self._check_open()
        if not isinstance(text, str):
            raise InvalidArgumentError(f"the message is {text!r:.60}; expected text")
        talk = self._talk
        messages = (*talk.messages, {"role": "user", "content": text})
        merged: Sampling = {**self._sampling, **sampling}
        prompt = self._prompt(talk, messages, merged)
        return Turn(talk, messages, make_generation(self._llm, prompt, merged, continues=False))

    def _prompt(self, talk: Talk, messages: Sequence[Message], sampling: Sampling) -> Fitted:
        llm = self._llm
        head, turns = split_turns(messages)
        shown = [*head, *chain.from_iterable(turns[talk.left_out_turns :])]
        room = 1
        if shifts(sampling, llm._on_overflow):
            room = room_for_reply(llm.n_ctx, sampling.get("max_tokens"))
            spare = llm.n_ctx // 4  # or every turn from now on would begin with another one
            fitted = fit_messages(shown, llm._template.encode, llm.n_ctx, room, spare)
        else:
            fitted = Fitted(list(llm._template.encode(shown)))
        tokens = continued(llm._tokenizer, talk.tokens, fitted.tokens)
        return Fitted(
            tokens if len(tokens) + room <= llm.n_ctx else fitted.tokens,
            talk.left_out_turns + fitted.dropped_turns,
            talk.left_out_tokens + fitted.dropped_tokens,
        )

    def _parts(self, turn: Turn, keep: bool) -> Parts:
        with closing(turn.generation.parts()) as parts, self._turn(turn, keep):
            for part in parts:
                if turn.take(part):
                    self._talk = turn.after()
                yield part

    async def _async_parts(self, turn: Turn, keep: bool) -> AsyncParts:
        async with aclosing(turn.generation.async_parts()) as parts:
            with self._turn(turn, keep):
                async for part in parts:
                    if turn.take(part):
                        self._talk = turn.after()
                    yield part

    @contextmanager
    def _turn(self, turn: Turn, keep: bool) -> Iterator[None]:
        with self._idle():
            if self._talk is not turn.before:
                raise SessionError(
                    "the session has gone on since this stream was made; make it again"
                )
            try:
                yield
            except Exception:
                raise
            except BaseException:  # Ctrl-C, a closed iterator, a cancelled task
                if keep and self._talk is turn.before and "".join(turn.text):
                    self._talk = turn.after()
                raise

    @contextmanager
    def _idle(self) -> Iterator[None]:
        """Keep others from the session meanwhile."""
        with self._lock:
            self._check_open()
            if self._answering:
                raise SessionError("the session is in the middle of a turn; end it, or use a fork")
            self._answering = True
        try:
            yield
        finally:
            with self._lock:
                self._answering = False
                if self._closed:
                    self._talk = Talk()

    def _check_open(self) -> None:
        if self._closed:
            raise SessionError("the session is closed; make another one")


def new_session(llm: Llama, system: str | None, messages: Messages, sampling: Sampling) -> Session:
    """A session that begins with a system prompt, if any, and these messages."""
    from llama3jit.text.messages import plain_messages

    begun: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    try:
        begun += messages
    except TypeError:
        raise InvalidArgumentError(
            f"messages is {messages!r:.60}; expected a list of dicts with role and content"
        ) from None
    return Session(llm, Talk(tuple(plain_messages(begun)) if begun else ()), sampling)
