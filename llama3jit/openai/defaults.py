"""What a model was opened with that its OpenAI-shaped methods go by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Pooling = Literal["mean", "last", "first", "none"]


@dataclass(frozen=True, slots=True)
class Defaults:
    """model: its name in answers.  seed: of calls that give none; None draws one.  repeat_last_n:
    how far back penalties look.  pooling: of embeddings.  spm_infill: the suffix goes first."""

    model: str = "llama3jit"
    seed: int | None = None
    repeat_last_n: int = 64
    pooling: Pooling = "mean"
    spm_infill: bool = False
