"""SentencePiece-style BPE (Llama 1 and 2, Mistral, TinyLlama): of all neighbours whose union is a
token, those with the highest score are joined first, the leftmost first among equals.

`tokenizers` cannot express that order: its merges are pairs with a rank each, so that two pairs
which make the same token never tie. The search here is a heap over the text, n log n.
"""

from __future__ import annotations

import re
from functools import lru_cache
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING

from llama3jit.errors import ModelFormatError
from llama3jit.text.vocabulary import BYTE

if TYPE_CHECKING:
    from llama3jit.text.vocabulary import Vocabulary

SPACE = "▁"
_WORDS = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+")
_CACHED_LENGTH = 64  # characters; longer stretches hardly come twice
_HEX_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class SentencePieceModel:
    """Plain text to ids and a token's bytes, special tokens aside."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = tokens = list(vocabulary.tokens)
        self._unk_id = vocabulary.unk_id
        self._space_prefix = vocabulary.add_space_prefix
        self._byte_of_id = _byte_tokens(vocabulary)
        self._id_of_byte = {byte: index for index, byte in self._byte_of_id.items()}
        closed = vocabulary.special_ids | self._byte_of_id.keys()
        self._ids = {tokens[i]: i for i in range(len(tokens))[::-1] if i not in closed}
        scores = list(map(float, vocabulary.scores))
        levels = sorted({scores[i] for i in self._ids.values()}, reverse=True)
        rank_of_score = {score: rank for rank, score in enumerate(levels)}
        self._ranks = {t: rank_of_score[scores[i]] for t, i in self._ids.items()}
        # Where no token goes on past a word's end, words can be merged on their own, and kept.
        self._words_part = not re.search(f"[^{SPACE}\n]{SPACE}", "\n".join(self._ids))
        self._cached = lru_cache(maxsize=16384)(self._merge)

    def encode(self, text: str, after_special: bool = False) -> list[int]:
        """Ids of `text`, which holds no lone surrogates; `after_special` says that it starts the
        text or follows a special token, where the space prefix goes."""
        if after_special and self._space_prefix:
            text = " " + text
        text = text.replace(" ", SPACE)
        ids: list[int] = []
        for word in _WORDS.findall(text) if self._words_part else (text,):
            merge = self._cached if len(word) <= _CACHED_LENGTH else self._merge
            ids.extend(merge(word))
        return ids

    def encode_byte(self, byte: int) -> list[int]:
        """The id of one byte that is no part of valid UTF-8."""
        index = self._id_of_byte.get(byte, self._unk_id)
        return [] if index is None else [index]

    def token_bytes(self, index: int) -> bytes:
        """The bytes that a token adds to the text."""
        if index in self._byte_of_id:
            return bytes([self._byte_of_id[index]])
        return self._tokens[index].replace(SPACE, " ").encode("utf-8", "replace")

    def _merge(self, word: str) -> tuple[int, ...]:
        """Ids of one stretch of text. A heap entry is rank << 32 | position of the left piece; an
        entry is stale when its position no longer starts a pair of that rank."""
        ranks, pieces, end = self._ranks, list(word), len(word)
        after = list(range(1, end + 1))
        before = list(range(-1, end - 1))
        heap = [
            ranks[pair] << 32 | at
            for at, pair in enumerate(map("".join, pairwise(word)))
            if pair in ranks
        ]
        heapify(heap)
        while heap:
            entry = heappop(heap)
            left = entry & 0xFFFFFFFF
            right = after[left]
            if right >= end or not pieces[left]:
                continue
            piece = pieces[left] + pieces[right]
            if ranks.get(piece) != entry >> 32:
                continue
            pieces[left], pieces[right] = piece, ""
            after[left] = following = after[right]
            if following < end:
                before[following] = left
                rank = ranks.get(piece + pieces[following])
                if rank is not None:
                    heappush(heap, rank << 32 | left)
            previous = before[left]
            if previous >= 0:
                rank = ranks.get(pieces[previous] + piece)
                if rank is not None:
                    heappush(heap, rank << 32 | previous)
        return self._lookup([piece for piece in pieces if piece])

    def _lookup(self, pieces: list[str]) -> tuple[int, ...]:
        """Ids of merged pieces: a character that is no token becomes its bytes, or, with no byte
        tokens, the unknown token (one for a run of such characters)."""
        ids: list[int] = []
        unknown = False
        for piece in pieces:
            index = self._ids.get(piece)
            if index is not None:
                ids.append(index)
                unknown = False
                continue
            encoded = piece.encode()
            if all(byte in self._id_of_byte for byte in encoded):
                ids.extend(self._id_of_byte[byte] for byte in encoded)
                unknown = False
            elif self._unk_id is None:
                raise ModelFormatError(
                    f"no token for the character {piece!r}: tokenizer.ggml.tokens has neither "
                    "all byte tokens <0x00> to <0xFF> nor an unknown token"
                )
            elif not unknown:
                ids.append(self._unk_id)
                unknown = True
        return tuple(ids)


def _byte_tokens(vocabulary: Vocabulary) -> dict[int, int]:
    """Token id -> the byte it stands for."""
    found = {}
    for index, kind in enumerate(vocabulary.types):
        if kind == BYTE:
            match = _HEX_BYTE.fullmatch(vocabulary.tokens[index])
            if match is None:
                raise ModelFormatError(
                    f"tokenizer.ggml.tokens[{index}] is {vocabulary.tokens[index]!r:.60}, and "
                    "tokenizer.ggml.token_type calls it a byte; expected <0x00> to <0xFF>"
                )
            found[index] = int(match[1], 16)
    return found
