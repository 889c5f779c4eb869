"""The model families that run: a row of feature flags for each `general.architecture`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """How an architecture departs from a Llama. Biases are not a flag: they are used where the
    file has them."""

    description: str


FAMILIES: dict[str, Family] = {
    "llama": Family("Llama 1 to 3.3, SmolLM2, Mistral 7B and their kin"),
}
