"""How much of a GPU's memory a model takes, known before anything is uploaded."""

from __future__ import annotations

from dataclasses import dataclass

from llama3jit.devices import Limits
from llama3jit.devices.cuda.arrange import ALIGNMENT
from llama3jit.devices.cuda.lower import Lowered
from llama3jit.devices.cuda.shapes import largest_shape, nbytes_of, sizes_of
from llama3jit.errors import MemoryLimitError

# For compiled kernels, graphs and what the driver keeps beside them.
RESERVE_BYTES = 192 * 2**20
USES = {
    "weight": "weights",
    "packed": "weights",
    "vector": "weights",
    "table": "weights",
    "cache": "kv",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operand lies: bytes from the start of the memory of its use, and how many."""

    use: str
    offset: int
    nbytes: int


def place_operands(lowered: Lowered, limits: Limits) -> tuple[dict[str, Place], dict[str, int]]:
    """A place for every operand that stays, aligned; and the bytes of each use. Batches and buffers
    lie elsewhere in every shape, views in other operands."""
    sizes = sizes_of(largest_shape(limits), limits)
    used = {**dict.fromkeys(USES.values(), 0), "buffers": lowered.arena}
    places = {}
    for name, operand in lowered.operands.items():
        if operand.kind not in USES:
            continue
        use, nbytes = USES[operand.kind], nbytes_of(operand, sizes)
        places[name] = Place(use, used[use], nbytes)
        used[use] += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return places, used


def check_memory(used: dict[str, int], limits: Limits, free: int, name: str) -> None:
    """Raise MemoryLimitError, which says what would fit, if a device has less free memory than the
    model needs."""
    needed = sum(used.values()) + RESERVE_BYTES
    if needed <= free:
        return
    parts = ", ".join(f"{use} {_mib(size)}" for use, size in used.items())
    advice = _advice(used, limits, free)
    raise MemoryLimitError(
        f"the model needs {_mib(needed)} of the memory of {name} ({parts}, and "
        f"{_mib(RESERVE_BYTES)} for kernels), and {_mib(free)} are free; {advice}"
    )


def _advice(used: dict[str, int], limits: Limits, free: int) -> str:
    for_cache = free - RESERVE_BYTES - used["weights"] - used["buffers"]
    blocks = max(0, for_cache) // max(1, used["kv"] // limits.n_blocks)
    tokens = (blocks - limits.max_sequences + 1) * limits.block_tokens
    if tokens > 0:
        return f"n_ctx={tokens} in place of {limits.n_ctx} would fit"
    most = free - RESERVE_BYTES - used["buffers"] - used["kv"]
    if most > 0:
        return f"a quantisation of {_mib(most)} or less would fit, or use device='cpu'"
    return "no model of this shape fits; use device='cpu'"


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"
