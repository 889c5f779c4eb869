"""Byte-level BPE of short ASCII texts, straight from the strings of the file.

The first prompt of a process is such a text as a rule, and would have to wait until `tokenizers`
has made its own tables of all tokens and merges. Whatever is not plain here is left to it.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from llama3jit.text.pretokenizers import Pretokenizer
from llama3jit.text.string_index import StringIndex, keys_of

if TYPE_CHECKING:
    from llama3jit.files.gguf_strings import Strings

LONGEST_TEXT = 4000  # characters; for more, `tokenizers` is worth the wait
LONGEST_WORD = 64  # merging takes the square of it
NO_RANK = 2**62
# What \p{L} and \p{N} are among ASCII characters, in a set.
CLASSES = {"L": "A-Za-z", "N": "0-9"}
_SETS = re.compile(r"\[[^\]]*\]|\\p\{[LN]\}")


class ShortTexts:
    """Plain text to ids; `characters[byte]` stands for a byte in the vocabulary.

    `tokens` and `merges` must be sound: see `sound`.
    """

    def __init__(
        self,
        tokens: Strings,
        merges: Strings,
        special_ids: frozenset[int],
        kind: Pretokenizer,
        characters: str,
    ) -> None:
        plain = np.ones(len(tokens), bool)
        plain[list(special_ids)] = False
        self._plain = np.flatnonzero(plain)
        self._tokens = StringIndex(
            tokens.data, tokens.offsets[self._plain], tokens.lengths[self._plain]
        )
        self._merges = StringIndex(merges.data, merges.offsets, merges.lengths)
        self.sound = _are_sound(merges, self._tokens)
        self._kind = kind
        self._pattern = re.compile(ascii_pattern(kind.pattern), re.ASCII)
        self._characters = {byte: characters[byte] for byte in range(128)}
        self._rank = cache(self._find_rank)
        self._ids = cache(self._encode_word)

    def encode(self, text: str) -> list[int] | None:
        """The ids, or None for a text that is not for here."""
        if len(text) > LONGEST_TEXT or not text.isascii():
            return None
        parts = re.findall("[0-9]|[^0-9]+", text) if self._kind.digits else [text]
        ids: list[int] = []
        for part in parts:
            for word in self._pattern.findall(part):
                found = self._ids(word) if len(word) <= LONGEST_WORD else None
                if found is None:
                    return None
                ids.extend(found)
        return ids

    def _find_id(self, token: str) -> int | None:
        found = self._tokens.find(token.encode())
        return int(self._plain[min(found)]) if found else None

    def _find_rank(self, left: str, right: str) -> int:
        # Of equal merges the last one counts, as it does in `tokenizers`.
        return max(self._merges.find(f"{left} {right}".encode()), default=NO_RANK)

    def _encode_word(self, word: str) -> tuple[int, ...] | None:
        """The ids of one word; None if a piece of it is no token."""
        pieces = list(word.translate(self._characters))
        if self._kind.whole_words:
            whole = self._find_id("".join(pieces))
            if whole is not None:
                return (whole,)
        while len(pieces) > 1:
            ranks = [self._rank(left, right) for left, right in pairwise(pieces)]
            best = min(ranks)
            if best == NO_RANK:
                break
            at = ranks.index(best)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        ids = [self._find_id(piece) for piece in pieces]
        return None if None in ids else tuple(ids)  # type: ignore[arg-type]


def ascii_pattern(pattern: str) -> str:
    """The pattern for Python's `re`, which knows no \\p{...}, equal on ASCII text."""

    def plain(match: re.Match[str]) -> str:
        part = match[0]
        for name, ranges in CLASSES.items():
            inner = part.replace(rf"\p{{{name}}}", ranges)
            part = f"[{inner}]" if inner != part and part[0] != "[" else inner
        return part

    # Groups must not capture: findall gives the words.
    return _SETS.sub(plain, pattern)


def _are_sound(merges: Strings, tokens: StringIndex) -> bool:
    """Whether each merge has two parts, and what they make is a token (by its key, which is enough
    to find a broken file; what a text uses is compared whole)."""
    data = np.frombuffer(merges.data, np.uint8)
    offsets, lengths = merges.offsets, merges.lengths
    spaces = np.flatnonzero(data == ord(" "))
    # A length field may have a space's value too.
    owners = np.searchsorted(offsets, spaces, side="right") - 1
    inside = (owners >= 0) & (spaces < (offsets + lengths)[owners])
    spaces, owners = spaces[inside], owners[inside]
    if not np.array_equal(owners, np.arange(len(merges))):
        return False
    if not ((spaces > offsets) & (spaces < offsets + lengths - 1)).all():
        return False
    joined = np.delete(data, spaces).tobytes()
    return tokens.has_keys(keys_of(joined, offsets - owners, lengths - 1))
