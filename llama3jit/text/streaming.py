"""Text out of a stream of token ids, part by part: `TextStream`."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama3jit.text.tokenizer import Tokenizer


class TextStream:
    """Turns ids into text that is safe to show at once: a character whose bytes are not complete
    is held back, and so is what may become one of the `stop` strings. Special tokens are skipped,
    but those `shown`.

    The parts always join to `decode(ids, skip_special=True)`, cut before the stop string that
    starts first. `continues`: the ids continue a text, so that a SentencePiece space at their
    start stays. `text` is what was given out so far, `stopped` the stop string that ended it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        continues: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        if isinstance(stop, str) or not all(isinstance(s, str) and s for s in stop):
            raise InvalidArgumentError(
                f"stop is {stop!r:.80}; expected a sequence of strings that are not empty"
            )
        self.text = ""
        self.stopped: str | None = None
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids - shown if shown else tokenizer.special_ids
        # Of stops that start together the shortest is complete first, whatever the parts are.
        self._stops = sorted(stop, key=len)
        self._strips_space = tokenizer.add_space_prefix and not continues
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, index: int) -> str:
        """The text that became safe to show with this token; "" once stopped."""
        data = self._tokenizer.token_bytes(index)
        if self.stopped is not None or index in self._hidden:
            return ""
        if self._strips_space:
            data, self._strips_space = data.removeprefix(b" "), False
        self._held += self._decoder.decode(data)
        return self._release(self._begun_stop())

    def finish(self) -> str:
        """The tail that was held back: no more ids come."""
        if self.stopped is None:
            self._held += self._decoder.decode(b"", final=True)
        return self._release(len(self._held))

    def _release(self, safe: int) -> str:
        """Give out held text up to `safe`, where a stop may have begun, or to a stop before it."""
        found = self._complete_stop()
        if found is not None and found[0] <= safe:
            safe, self.stopped = found
        part, self._held = self._held[:safe], self._held[safe:]
        if self.stopped is not None:
            self._held = ""
        self.text += part
        return part

    def _complete_stop(self) -> tuple[int, str] | None:
        """(where, which) of the stop that starts first in the held text."""
        found = [(self._held.find(stop), stop) for stop in self._stops]
        return min((hit for hit in found if hit[0] >= 0), key=lambda hit: hit[0], default=None)

    def _begun_stop(self) -> int:
        """Where the longest end of the held text starts that begins a stop; its length if none."""
        held = self._held
        longest = len(self._stops[-1]) if self._stops else 1
        for at in range(max(0, len(held) - longest + 1), len(held)):
            tail = held[at:]
            if any(stop.startswith(tail) for stop in self._stops):
                return at
        return len(held)
