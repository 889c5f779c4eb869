"""Blocks of a KV cache in host memory, as bytes: those of each layer's keys and values in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama3jit.errors import InvalidArgumentError

Caches = Sequence[NDArray[Any]]  # each [n_blocks, ...], contiguous


def copy_block(caches: Caches, source: int, target: int) -> None:
    """Make a block hold what another holds."""
    for cache in caches:
        cache[target] = cache[source]


def read_block(caches: Caches, block: int) -> NDArray[np.uint8]:
    """A copy of a block's bytes."""
    return np.concatenate([cache[block].reshape(-1).view(np.uint8) for cache in caches])


def write_block(caches: Caches, block: int, data: NDArray[np.uint8]) -> None:
    """Make a block hold what `read_block` gave. Raises InvalidArgumentError for another size."""
    check_size(data, sum(cache[block].nbytes for cache in caches))
    at = 0
    for cache in caches:
        held = cache[block].reshape(-1).view(np.uint8)
        held[:] = data[at : at + held.nbytes]
        at += held.nbytes


def check_size(data: NDArray[np.uint8], nbytes: int) -> None:
    """Raise InvalidArgumentError unless these are a block's bytes."""
    if data.dtype != np.uint8 or data.shape != (nbytes,):
        raise InvalidArgumentError(
            f"a KV block was given as {data.dtype}{list(data.shape)}: expected uint8[{nbytes}]"
        )
