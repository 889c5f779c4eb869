"""What a grammar has to do to guide a sequence; the engine knows no more of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Constraint(Protocol):
    """Which tokens may come next, and what has come. Not for several threads at once."""

    @property
    def finished(self) -> bool:
        """Nothing may follow but the end."""

    def allow(self, logits: NDArray[np.float32]) -> None:
        """Set the logits [vocab_size] of tokens that may not come next to -inf, in place."""

    def accept(self, token: int) -> None:
        """Go on by a token that was allowed, and that is not an end token."""

    def copy(self) -> Constraint:
        """Another that goes on from here on its own."""
