"""How text is cut into words before byte-level BPE merges, by the name in tokenizer.ggml.pre.

The expressions are those of the models' published tokenizer.json files.
"""

from __future__ import annotations

import difflib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer


class UnknownPretokenizerWarning(UserWarning):
    """The file's tokenizer.ggml.pre is missing or unknown, so that another one stands in."""


@dataclass(frozen=True, slots=True)
class Pretokenizer:
    """`pattern` finds the words; `digits` first cuts out each digit; `nfc` composes characters;
    with `whole_words`, a word that is in the vocabulary is one token, whatever the merges say."""

    pattern: str
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False


_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_CL100K = (
    rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

KINDS = {
    "llama-bpe": Pretokenizer(_CL100K % "{1,3}", whole_words=True),
    "qwen2": Pretokenizer(_CL100K % "", nfc=True),
    "smollm": Pretokenizer(_GPT2, digits=True),
    "gpt-2": Pretokenizer(_GPT2),
}
ALIASES = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "falcon3": "llama-bpe",
    "pixtral": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
    "stablelm2": "qwen2",
    "megrez": "qwen2",
    "codeshell": "smollm",
    "command-r": "smollm",
    "refact": "smollm",
    "starcoder": "smollm",
    "gpt2": "gpt-2",
    "mpt": "gpt-2",
    "olmo": "gpt-2",
    "phi-2": "gpt-2",
}
FALLBACK = "gpt-2"


def find_pretokenizer(name: str | None, is_llama3: bool = False) -> Pretokenizer:
    """The kind for `name`; an unknown or missing name gives a warning and the nearest kind, which
    is Llama 3's for a vocabulary that looks like it."""
    kind = ALIASES.get(name or "", name)
    if kind in KINDS:
        return KINDS[kind]
    names = [*KINDS, *ALIASES]
    near = difflib.get_close_matches((name or "").lower(), names, n=1, cutoff=0.5)
    nearest = ALIASES.get(near[0], near[0]) if near else FALLBACK
    if is_llama3:
        nearest = "llama-bpe"
    found = f"is {name!r}, which is unknown" if name else "is missing"
    warnings.warn(
        f"tokenizer.ggml.pre {found}: cutting words as {nearest!r} does; "
        "digits, spaces and apostrophes may be tokenised unlike the model was trained",
        UnknownPretokenizerWarning,
        stacklevel=2,
    )
    return KINDS[nearest]


def build_pretokenizer(kind: Pretokenizer) -> tuple[PreTokenizer, Normalizer | None]:
    """The `tokenizers` objects for a kind."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    steps: list[PreTokenizer] = []
    if kind.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.Split(Regex(kind.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps), normalizers.NFC() if kind.nfc else None
