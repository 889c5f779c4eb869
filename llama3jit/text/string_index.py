"""Finds byte strings among the tens of thousands of a vocabulary, without making an object of each:
a sorted array of 64-bit keys, made by NumPy in a few milliseconds."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Any odd numbers do: what a key finds is compared byte for byte.
FACTORS = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
WORD = 8
LOW_64 = 2**64 - 1
# By length: what of a word belongs to a string that is shorter than it.
MASKS = np.array([(1 << 8 * length) - 1 for length in range(WORD + 1)], np.uint64)


def key_of(text: bytes) -> int:
    """The key of one string, from its first and last eight bytes and its length."""
    first = int.from_bytes(text[:WORD], "little")
    last = int.from_bytes(text[-WORD:], "little")
    a, b, c = FACTORS
    mixed = first * a & LOW_64
    mixed = (mixed ^ mixed >> 29) + last * b & LOW_64
    return ((mixed ^ mixed >> 32) + len(text) * c) * a & LOW_64


def keys_of(
    data: bytes, offsets: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """The keys of the strings data[offsets[i]:][:lengths[i]], [n]."""
    padded = data + bytes(WORD)
    # The eight bytes from every offset on, as a number.
    words = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))
    short = np.minimum(lengths, WORD)
    mask = MASKS[short]
    first = words[offsets] & mask
    last = words[offsets + lengths - short] & mask
    a, b, c = map(np.uint64, FACTORS)
    mixed = first * a
    mixed = (mixed ^ mixed >> np.uint64(29)) + last * b
    mixed = (mixed ^ mixed >> np.uint64(32)) + lengths.astype(np.uint64) * c
    keys: NDArray[np.uint64] = mixed * a
    return keys


class StringIndex:
    """The strings data[offsets[i]:][:lengths[i]], to be found by their bytes."""

    def __init__(self, data: bytes, offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        keys = keys_of(data, offsets, lengths)
        self._order = np.argsort(keys)
        self.sorted_keys: NDArray[np.uint64] = keys[self._order]
        self._keys = memoryview(self.sorted_keys.data)
        self._data, self._offsets, self._lengths = data, offsets, lengths

    def find(self, text: bytes) -> list[int]:
        """Every i of which string i is `text`, in no order."""
        key = key_of(text)
        found = []
        at = bisect_left(self._keys, key)
        while at < len(self._keys) and self._keys[at] == key:
            i = int(self._order[at])
            start = int(self._offsets[i])
            if self._data[start : start + int(self._lengths[i])] == text:
                found.append(i)
            at += 1
        return found

    def has_keys(self, keys: NDArray[np.uint64]) -> bool:
        """Whether each of the keys is that of some string here."""
        wanted = np.sort(keys)  # in order they are found five times as fast
        at = np.searchsorted(self.sorted_keys, wanted)
        return bool((at < len(self.sorted_keys)).all() and (self.sorted_keys[at] == wanted).all())
