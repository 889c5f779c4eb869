"""What the cache holds of some tokens, outside of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """tokens: from position 0 on.  blocks: the bytes of their KV blocks, uint8 [block_bytes]."""

    tokens: Sequence[int]
    blocks: Sequence[NDArray[np.uint8]]
