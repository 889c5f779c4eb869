"""What a GGUF says about its vocabulary, checked: `read_vocabulary(metadata) -> Vocabulary`.

Key names and token types: the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama3jit.errors import ModelFormatError, UnsupportedError
from llama3jit.files.gguf_values import Metadata

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Tokens after which a model has nothing more to say, whatever eos_token_id names.
END_TOKENS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|im_end|>",
        "<|end|>",
        "<|eot|>",
        "<|return|>",
        "<|end_of_turn|>",
        "<|endofturn|>",
        "<|end_of_utterance|>",
        "<|end_of_message|>",
        "<|END_OF_TURN_TOKEN|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<｜end▁of▁sentence｜>",
        "<|EOT|>",
        "<EOT>",
        "<eos>",
        "</s>",
    }
)
# Some files call their control tokens user-defined; then a user could type them.
CONTROL_LOOKING = re.compile(r"<[|｜][^<>]*[|｜]>")
BOS_TOKENS = ("<s>", "<|begin_of_text|>")
LLAMA3_VOCABULARY = 128256


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A vocabulary of `len(tokens)` ids. `types[id]` is NORMAL, CONTROL, ...; `scores` (model
    "llama") and `merges` (model "gpt2", "left right" in order of rank) are empty where unused.
    `is_llama3`: it looks like Llama 3's."""

    model: str
    pre: str | None
    is_llama3: bool
    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    merges: Sequence[str]
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    pad_id: int | None
    end_ids: frozenset[int]
    special_ids: frozenset[int]
    user_defined_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """The vocabulary under `tokenizer.ggml.*`. Raises ModelFormatError (a key that is missing or
    cannot be right) and UnsupportedError (a kind of tokenizer that is not built)."""
    model = _text(metadata, "tokenizer.ggml.model")
    if model is None:
        raise ModelFormatError(
            "the file has no vocabulary: the key tokenizer.ggml.model is missing; use a GGUF that "
            "was converted together with its tokenizer"
        )
    if model not in ("gpt2", "llama"):
        raise UnsupportedError(
            f"tokenizer.ggml.model is {model!r}; built are 'gpt2' (byte-level BPE) and 'llama' "
            "(SentencePiece)"
        )
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    types = _numbers(metadata, "tokenizer.ggml.token_type", len(tokens))
    types = [NORMAL] * len(tokens) if types is None else types
    is_llama = model == "llama"
    scores = _numbers(metadata, "tokenizer.ggml.scores", len(tokens)) if is_llama else []
    if scores is None:
        raise ModelFormatError("tokenizer.ggml.scores is missing; a 'llama' vocabulary needs it")

    user_defined = _of_kind(types, USER_DEFINED)
    special = _of_kind(types, CONTROL, UNKNOWN)
    posing = {i for i in user_defined if CONTROL_LOOKING.fullmatch(tokens[i])}
    posing |= {i for i in user_defined if tokens[i] in END_TOKENS}
    special |= posing

    named = {name: _id(metadata, name, len(tokens)) for name in ("bos", "eos", "eot", "eom")}
    unk_id = _id(metadata, "unknown", len(tokens))
    by_text = {tokens[i]: i for i in sorted(special, reverse=True)}
    bos_id, eos_id = named["bos"], named["eos"]
    if bos_id is None:
        bos_id = next((by_text[text] for text in BOS_TOKENS if text in by_text), None)
    if is_llama:
        eos_id = by_text.get("</s>") if eos_id is None else eos_id
        unk_id = by_text.get("<unk>") if unk_id is None else unk_id
    ends = {i for i in special if tokens[i] in END_TOKENS}
    ends |= {i for i in (eos_id, named["eot"], named["eom"]) if i is not None}
    special |= ends | {i for i in (bos_id,) if i is not None}

    pre = _text(metadata, "tokenizer.ggml.pre")
    is_llama3 = not is_llama and _looks_like_llama3(tokens, by_text)
    if pre is None and is_llama3:
        pre = "llama-bpe"
    adds_bos = is_llama or pre in ("llama-bpe", "llama3", "llama-v3", "tekken")
    return Vocabulary(
        model=model,
        pre=pre,
        is_llama3=is_llama3,
        tokens=tokens,
        types=types,
        scores=scores,
        merges=[] if is_llama else _strings(metadata, "tokenizer.ggml.merges"),
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=unk_id,
        pad_id=_id(metadata, "padding", len(tokens)),
        end_ids=frozenset(ends),
        special_ids=frozenset(special),
        user_defined_ids=frozenset(user_defined - special),
        add_bos=_flag(metadata, "add_bos_token", adds_bos) and bos_id is not None,
        add_eos=_flag(metadata, "add_eos_token", False) and eos_id is not None,
        add_space_prefix=is_llama and _flag(metadata, "add_space_prefix", True),
    )


def _of_kind(types: Sequence[int], *kinds: int) -> set[int]:
    """The ids of these types."""
    if isinstance(types, list):
        return {i for i, kind in enumerate(types) if kind in kinds}
    import numpy as np

    return set(np.flatnonzero(np.isin(types, kinds)).tolist())


def _looks_like_llama3(tokens: Sequence[str], by_text: Mapping[str, int]) -> bool:
    return len(tokens) == LLAMA3_VOCABULARY or "<|begin_of_text|>" in by_text


def _text(metadata: Mapping[str, Any], key: str) -> str | None:
    value = metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise ModelFormatError(f"{key} is {value!r:.60}; expected text")
    return value


def _strings(metadata: Mapping[str, Any], key: str) -> Sequence[str]:
    """An array of strings; of a file's own metadata, strings that are decoded when used."""
    if isinstance(metadata, Metadata) and key in metadata:
        kind, count = metadata.array_info(key) or ("", 0)
        if kind == "str" and count:
            return metadata.strings(key)
    values = metadata.get(key)
    if values is None:
        raise ModelFormatError(f"{key} is missing; this vocabulary cannot work without it")
    if isinstance(values, str | bytes) or not hasattr(values, "__len__") or not len(values):
        raise ModelFormatError(f"{key} is {values!r:.60}; expected an array of strings")
    values = list(values)
    if set(map(type, values)) != {str}:
        at = next(i for i, value in enumerate(values) if type(value) is not str)
        raise ModelFormatError(f"{key}[{at}] is {values[at]!r:.60}; expected a string")
    return values


def _numbers(metadata: Mapping[str, Any], key: str, count: int) -> Sequence[Any] | None:
    """One number for each token, a list or a NumPy array; None where there are none."""
    values = metadata.get(key)
    if values is None:
        return None
    if hasattr(values, "dtype"):
        numbers = values.ndim == 1 and values.dtype.kind in "iuf"
    else:
        numbers = isinstance(values, list | tuple) and set(map(type, values)) <= {int, float}
    if not numbers:
        raise ModelFormatError(f"{key} is {values!r:.60}; expected an array of numbers")
    if len(values) != count:
        raise ModelFormatError(
            f"{key} has {len(values)} entries; tokenizer.ggml.tokens has {count}, and each token "
            "needs one"
        )
    if (values != values).any() if hasattr(values, "dtype") else any(v != v for v in values):
        raise ModelFormatError(f"{key} has a NaN; expected numbers")
    return values if hasattr(values, "dtype") else list(values)


def _id(metadata: Mapping[str, Any], name: str, count: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    try:
        index = value.__index__()
    except (AttributeError, TypeError):
        raise ModelFormatError(f"{key} is {value!r:.60}; expected a token id") from None
    if not 0 <= index < count:
        raise ModelFormatError(f"{key} is {index}; the vocabulary has ids 0 to {count - 1}")
    return int(index)


def _flag(metadata: Mapping[str, Any], name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if value is None:
        return default
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise ModelFormatError(f"tokenizer.ggml.{name} is {value!r:.60}; expected true or false")
