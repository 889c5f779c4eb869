"""What an engine has done, for those who look at it from outside."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Counters:
    """Since the engine began: passes, tokens that were computed, tokens that were found in the
    cache in place of that, sequences that gave their blocks back and went on later, and sequences
    that ended, were cancelled or failed. Now: blocks that nobody holds, those among them that can
    be found again, and sequences."""

    steps: int
    tokens_computed: int
    prefix_tokens: int
    preemptions: int
    finished: int
    cancelled: int
    failed: int
    blocks_free: int
    blocks_cached: int
    running: int
    waiting: int
