"""Texts that end a repetition, as tokens: for the dry penalty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from llama3jit.text.tokenizer import Tokenizer

Breakers = Mapping[int, tuple[tuple[int, ...], ...]]

MOST_CHARACTERS, MOST_TOKENS = 40, 20  # of a text, and after its first token; llama.cpp's

_known: WeakKeyDictionary[Tokenizer, dict[tuple[str, ...], Breakers]] = WeakKeyDictionary()


def breaker_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> Breakers:
    """For each token with which one of the texts can begin: the tokens that may follow it to make
    up the text, () when it holds the text whole. Goes through the vocabulary, once for the same
    tokenizer and texts."""
    known = _known.setdefault(tokenizer, {})
    key = tuple(texts)
    if key not in known:
        known[key] = _find(tokenizer, key)
    return known[key]


def _find(tokenizer: Tokenizer, texts: tuple[str, ...]) -> Breakers:
    found: dict[int, dict[tuple[int, ...], None]] = {}
    wanted = [text[:MOST_CHARACTERS].encode() for text in texts]
    tails = {
        text[at:]: _tail(tokenizer, text[at:]) for text in wanted for at in range(1, len(text))
    }
    for token in range(tokenizer.vocab_size):
        data = tokenizer.token_bytes(token)
        for text in wanted:
            if text in data:
                found.setdefault(token, {})[()] = None
                continue
            for at in range(1, len(text)):
                if data.endswith(text[:at]):
                    found.setdefault(token, {})[tails[text[at:]]] = None
    return {token: tuple(rests) for token, rests in found.items()}


def _tail(tokenizer: Tokenizer, data: bytes) -> tuple[int, ...]:
    text = data.decode("utf-8", "surrogateescape")
    return tuple(tokenizer.encode(text, add_bos=False, add_eos=False, continues=True)[:MOST_TOKENS])
