"""Prompts with a suffix, for models that were trained to fill in what is between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama3jit.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from llama3jit.api import Llama
    from llama3jit.arguments import Prompt

# Keys of the file, and names in vocabularies: of the prefix, the suffix, the middle.
KEYS = (
    ("fim_pre_token_id", "prefix_token_id"),
    ("fim_suf_token_id", "suffix_token_id"),
    ("fim_mid_token_id", "middle_token_id"),
)
NAMES = (
    ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "▁<PRE>", "<|fim▁begin|>"),
    ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "▁<SUF>", "<|fim▁hole|>"),
    ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "▁<MID>", "<|fim▁end|>"),
)


def infill_ids(llm: Llama, prompt: Prompt, suffix: object) -> list[int]:
    """BOS, if the file wants one, prefix mark, prompt, suffix mark, suffix, middle mark; with
    spm_infill the suffix first. Raises UnsupportedError for a model without these marks."""
    if not isinstance(suffix, str):
        raise InvalidArgumentError(f"suffix is {suffix!r:.60}: expected text")
    if not isinstance(prompt, str):
        raise InvalidArgumentError(
            "suffix is given beside token ids: expected a text as the prompt"
        )
    marks = [_mark(llm, keys, names) for keys, names in zip(KEYS, NAMES, strict=True)]
    if None in marks:
        raise UnsupportedError(
            "suffix is given, and the model's vocabulary has no tokens for filling in (such as "
            f"{' '.join(row[0] for row in NAMES)}): leave suffix out, or use a model trained for it"
        )
    encode = llm._tokenizer.encode
    before = [marks[0], *encode(prompt, add_bos=False, add_eos=False)]
    after = [marks[1], *encode(suffix, add_bos=False, add_eos=False)]
    bos = encode("", add_eos=False)
    parts = after + before if llm._defaults.spm_infill else before + after
    return [*bos, *parts, marks[2]]  # type: ignore[list-item]


def _mark(llm: Llama, keys: tuple[str, ...], names: tuple[str, ...]) -> int | None:
    for key in keys:
        token = llm.metadata.get(f"tokenizer.ggml.{key}")
        if isinstance(token, int) and 0 <= token < llm.vocab_size:
            return token
    found = (llm._tokenizer.find_special(name) for name in names)
    return next((token for token in found if token is not None), None)
