"""Where a plan runs. Each device is a module with `load(...) -> Runner`; this page is what the
engine sees of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llama3jit.model.batch import Batch


@dataclass(frozen=True, slots=True)
class Limits:
    """What one forward pass and one KV cache hold."""

    vocab_size: int
    n_ctx: int  # tokens of one sequence
    max_tokens: int  # T of a batch
    max_sequences: int  # S of a batch
    max_logits_rows: int  # R of a batch
    block_tokens: int  # tokens of a KV block
    n_blocks: int  # KV blocks in the pool


@dataclass(frozen=True, slots=True)
class Leading:
    """The largest logits of each row, by falling logit and then rising id; all of them finite."""

    ids: NDArray[np.int32]  # [R, n_leading], or vocab_size if that is less
    logits: NDArray[np.float32]  # the same


class Runner(Protocol):
    """A model on a device. All but `cancel`, which is for any thread, is for one at a time."""

    limits: Limits
    device: str  # "cpu", "cuda:0", "reference"
    memory: dict[str, int]  # bytes that the model takes there, by use
    n_leading: int  # how many logits of a row `leading` gives; 0 if it is not to be called

    def begin(self) -> None:
        """Forget what was cancelled: from now on `cancel` means the next forward pass."""

    def forward(self, batch: Batch) -> NDArray[np.float32]:
        """Logits [R, vocab_size] of the rows asked for; valid until the next call.

        Raises CancelledError if `cancel` was called since the last `begin` or pass, DeviceError
        when the device fails.
        """

    def leading(self, batch: Batch) -> Leading | None:
        """As `forward`, but of each row the largest logits alone, so that less leaves the device;
        None if they cannot be told so, as where a logit is not finite."""

    def copy_block(self, source: int, target: int) -> None:
        """Make a block of the KV cache hold what another holds."""

    def read_block(self, block: int) -> NDArray[np.uint8]:
        """A copy of the bytes of a block of the KV cache, [block_bytes]."""

    def write_block(self, block: int, data: NDArray[np.uint8]) -> None:
        """Make a block hold what `read_block` gave, of this runner or of one of the same model,
        device, kv_dtype and precision. Raises InvalidArgumentError for another size."""

    def cancel(self) -> None:
        """Make the forward pass that is running, or else the next, end soon."""

    def close(self) -> None:
        """Let go of weights, cache and threads; may be called twice."""
