"""The shapes that graphs are made for, and what the symbols of a plan are in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from llama3jit.devices import Limits
from llama3jit.model.plan import Operand
from llama3jit.ops.signature import DTYPES


@dataclass(frozen=True, slots=True)
class Shape:
    """What a graph is made for: tokens, rows of logits, sequences, and blocks of a sequence, each
    as many or more than a batch has."""

    n_tokens: int
    n_rows: int
    n_sequences: int
    n_blocks: int
    alone: bool = False  # whether every token is of another sequence


def shape_of(
    limits: Limits, n_tokens: int, n_rows: int, n_blocks: int, alone: bool = False
) -> Shape:
    """The shape for a batch: the next powers of two, of blocks those of four, so that few graphs
    serve all batches."""
    tokens = min(_power(2, n_tokens), limits.max_tokens)
    return Shape(
        n_tokens=tokens,
        n_rows=min(_power(2, n_rows), limits.max_logits_rows) if n_rows else 0,
        n_sequences=min(tokens, limits.max_sequences),
        n_blocks=min(_power(4, n_blocks), most_blocks(limits)),
        alone=alone,
    )


def counts_up_to(most: int) -> list[int]:
    """The powers of two up to a number, and that number: what `shape_of` makes of all counts."""
    return [*(2**i for i in range((most - 1).bit_length())), most]


def largest_shape(limits: Limits) -> Shape:
    """One that no batch exceeds."""
    return Shape(
        limits.max_tokens, limits.max_logits_rows, limits.max_sequences, most_blocks(limits)
    )


def most_blocks(limits: Limits) -> int:
    """KV blocks of one sequence."""
    return -(-limits.n_ctx // limits.block_tokens)


def _power(base: int, n: int) -> int:
    """The least power of the base that is n or more."""
    power = 1
    while power < n:
        power *= base
    return power


def sizes_of(shape: Shape, limits: Limits) -> dict[str, int]:
    """What each symbol of a plan is in a pass of this shape."""
    return {
        "T": shape.n_tokens,
        "R": max(shape.n_rows, 1),
        "S": shape.n_sequences,
        "B": shape.n_blocks,
        "n_blocks": limits.n_blocks,
    }


def nbytes_of(operand: Operand, sizes: Mapping[str, int]) -> int:
    """Bytes of an operand."""
    dims = [sizes[dim] if isinstance(dim, str) else dim for dim in operand.shape]
    return prod(dims) * np.dtype(DTYPES[operand.dtype]).itemsize
