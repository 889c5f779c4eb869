"""Byte-level BPE (GPT-2, Llama 3, Qwen2, SmolLM2): the merging is done by `tokenizers`, but for
the first short texts (see short_texts.py)."""

from __future__ import annotations

from functools import cached_property
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from llama3jit.errors import ModelFormatError
from llama3jit.files.gguf_strings import Strings
from llama3jit.text.pretokenizers import Pretokenizer, build_pretokenizer, find_pretokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer as Backend

    from llama3jit.text.short_texts import ShortTexts
    from llama3jit.text.vocabulary import Vocabulary


def _byte_characters() -> str:
    """The 256 characters that stand for the bytes 0 to 255 in such a vocabulary: printable Latin-1
    stands for itself, the others follow in order from U+0100 (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(spare)) for byte in range(256))


CHARACTER_OF_BYTE = _byte_characters()
BYTE_OF_CHARACTER = {character: byte for byte, character in enumerate(CHARACTER_OF_BYTE)}


class ByteLevelModel:
    """Plain text to ids and a token's bytes, special tokens aside."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokens = vocabulary.tokens
        self._kind = find_pretokenizer(vocabulary.pre, vocabulary.is_llama3)
        self._short = _short_texts(vocabulary, self._kind)
        if self._short is None:
            self._backend  # noqa: B018  (what is wrong with the merges is said now)

    def encode(self, text: str, after_special: bool = False) -> list[int]:
        """Ids of `text`, which holds no lone surrogates."""
        short = self._short  # other threads may let go of it
        ids = short.encode(text) if short else None
        if ids is None:
            ids = self._backend.encode(text, add_special_tokens=False).ids
            self._short = None  # now that there is the faster one
        return ids

    @cached_property
    def _backend(self) -> Backend:
        return _build_backend(self._vocabulary, self._ids, self._kind)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return _plain_ids(self._tokens, self._vocabulary.special_ids)

    def encode_byte(self, byte: int) -> list[int]:
        """The id of one byte that is no part of valid UTF-8; those of U+FFFD if it has none: the
        unknown token of such vocabularies is a control token, as a rule the end of a text."""
        index = self._ids.get(CHARACTER_OF_BYTE[byte])
        return self.encode("\N{REPLACEMENT CHARACTER}") if index is None else [index]

    def token_bytes(self, index: int) -> bytes:
        """The bytes that a token adds to the text."""
        try:
            return bytes([BYTE_OF_CHARACTER[character] for character in self._tokens[index]])
        except KeyError:
            return self._tokens[index].encode("utf-8", "replace")


def _short_texts(vocabulary: Vocabulary, kind: Pretokenizer) -> ShortTexts | None:
    """What encodes short texts without the backend; None where only the backend will do, as for
    merges that it has to complain of."""
    tokens, merges = vocabulary.tokens, vocabulary.merges
    if not (isinstance(tokens, Strings) and isinstance(merges, Strings)):
        return None
    from llama3jit.text.short_texts import ShortTexts

    short = ShortTexts(tokens, merges, vocabulary.special_ids, kind, CHARACTER_OF_BYTE)
    return short if short.sound else None


def _plain_ids(tokens: Sequence[str], special_ids: frozenset[int]) -> dict[str, int]:
    """Token -> id of all but the special tokens; of equal tokens the lowest id."""
    tokens = list(tokens)
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) == len(tokens):
        for index in special_ids:
            del ids[tokens[index]]
        return ids
    return {tokens[i]: i for i in reversed(range(len(tokens))) if i not in special_ids}


def _build_backend(vocabulary: Vocabulary, ids: dict[str, int], kind: Pretokenizer) -> Backend:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    pairs = _pairs(vocabulary.merges) or _checked_merges(vocabulary, ids)
    try:
        # A merge into what is no token does not raise in `tokenizers`: it panics.
        if not all(map(ids.__contains__, map("".join, pairs))):
            raise LookupError
        model = models.BPE(ids, pairs, ignore_merges=kind.whole_words)
    except Exception:
        pairs = _checked_merges(vocabulary, ids)
        model = models.BPE(ids, pairs, ignore_merges=kind.whole_words)
    backend = Backend(model)
    pre_tokenizer, normalizer = build_pretokenizer(kind)
    backend.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        backend.normalizer = normalizer
    return backend


def _pairs(merges: Sequence[str]) -> list[Any]:
    """The two tokens of each merge, without a loop of Python's; nothing if one is malformed."""
    merges = list(merges)
    if set(map(methodcaller("count", " "), merges)) != {1}:
        return []
    parts = "\n".join(merges).replace(" ", "\n").split("\n")
    if len(parts) != 2 * len(merges):
        return []
    return list(zip(parts[::2], parts[1::2], strict=True))


def _checked_merges(vocabulary: Vocabulary, ids: dict[str, int]) -> list[Any]:
    """The merges that only concern plain tokens; ModelFormatError names one that cannot be."""
    known = set(vocabulary.tokens)
    pairs = []
    for rank, merge in enumerate(vocabulary.merges):
        pair = tuple(merge.split(" "))
        if len(pair) != 2 or not all(pair):
            raise ModelFormatError(
                f"tokenizer.ggml.merges[{rank}] is {merge!r:.60}; expected two tokens and a space"
            )
        for token in (*pair, "".join(pair)):
            if token not in known:
                raise ModelFormatError(
                    f"tokenizer.ggml.merges[{rank}] is {merge!r:.60}, but {token!r:.60} is not "
                    "in tokenizer.ggml.tokens"
                )
        # A control token is never the result of merging plain text.
        if all(token in ids for token in (*pair, "".join(pair))):
            pairs.append(pair)
    return pairs
