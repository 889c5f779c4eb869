"""What a compiled kernel takes of a GPU, from the assembler's words."""

from __future__ import annotations

import re
from dataclasses import dataclass

_PATTERNS = {
    "registers": r"Used (\d+) registers",
    "stack_bytes": r"(\d+) bytes stack frame",
    "spilled_bytes": r"(\d+) bytes spill (?:stores|loads)",
    "local_bytes": r"(\d+) bytes lmem",
    "shared_bytes": r"(\d+) bytes smem",
}


@dataclass(frozen=True, slots=True)
class Resources:
    """Of each thread: registers, bytes of the stack, of spilled registers (written and read), of
    local memory; of each block: bytes of static shared memory."""

    registers: int
    stack_bytes: int
    spilled_bytes: int
    local_bytes: int
    shared_bytes: int


def resources(log: str) -> Resources:
    """The largest of each number that ptxas -v names. Raises ValueError if there are no
    registers among them."""
    found = {name: [int(n) for n in re.findall(text, log)] for name, text in _PATTERNS.items()}
    if not found["registers"]:
        raise ValueError(f"the assembler does not say what the kernel takes: {log!r:.200}")
    return Resources(**{name: max(numbers, default=0) for name, numbers in found.items()})
