"""Vocabularies to test with: small ones made here, and those of real files where they are."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest

from llama3jit.errors import ModelNotFoundError
from llama3jit.files.gguf import open_gguf
from llama3jit.files.store import resolve
from llama3jit.text.vocabulary import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED

SHARED = Path(__file__).parents[3] / "shared"
LLAMA3_VOCAB = SHARED / "data/ggml-vocab-llama-bpe.gguf"
TEMPLATES = SHARED / "data/templates"

CORPUS = """
The quick brown fox jumps over the lazy dog; it's what they've said, isn't it? We'll see.
naïve café Zürich 我想在苹果工作 привет мир 🚀🏋️‍♀️ ½ ² 3 33 333 1234567 3.14 0x1F
2024 2024 2024 2024 1234567 1234567 1234567 1234567 IT'S IT'S IT'S x\n\n\n x
def encode(self, text):\n    return [self.ids[word] for word in split(text)]\n\n\t\tx = y\r\n
""" + (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")


@functools.cache
def llama3_metadata() -> dict[str, Any]:
    if not LLAMA3_VOCAB.is_file():
        pytest.skip(f"{LLAMA3_VOCAB} is missing")
    return _tokenizer_keys(LLAMA3_VOCAB)


@functools.cache
def smollm2_metadata() -> dict[str, Any]:
    return _tokenizer_keys(smollm2_path())


def smollm2_path() -> Path:
    """The model that `llama3jit pull` fetches, or LLAMA3JIT_TEST_MODEL."""
    try:
        return Path(resolve(os.environ.get("LLAMA3JIT_TEST_MODEL", "smollm2-135m-instruct")))
    except ModelNotFoundError as error:
        pytest.skip(f"SmolLM2 is missing: {error}")


def _tokenizer_keys(path: Path) -> dict[str, Any]:
    with open_gguf(path) as file:
        return {key: file.metadata[key] for key in file.metadata if key.startswith("tokenizer.")}


@functools.cache
def _trained() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE trained on CORPUS."""
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=800, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([CORPUS], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return sorted(model["vocab"], key=model["vocab"].__getitem__), merges


def bytelevel(
    pre: str | None = "gpt-2", control: tuple[str, ...] = (), user_defined: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A byte-level vocabulary of 800 tokens, and then the given ones."""
    tokens, merges = _trained()
    more = [*control, *user_defined]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(control) + [USER_DEFINED] * len(user_defined)
    return {
        "tokenizer.ggml.model": "gpt2",
        **({} if pre is None else {"tokenizer.ggml.pre": pre}),
        "tokenizer.ggml.tokens": [*tokens, *more],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
    }


def sentencepiece(
    pieces: dict[str, float], byte_tokens: bool = True, user_defined: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A SentencePiece-style vocabulary: <unk> <s> </s>, bytes, `pieces` with their scores."""
    tokens, types = ["<unk>", "<s>", "</s>"], [UNKNOWN, CONTROL, CONTROL]
    scores = [0.0] * 3
    if byte_tokens:
        tokens += [f"<0x{byte:02X}>" for byte in range(256)]
        types += [BYTE] * 256
        scores += [0.0] * 256
    tokens += [*pieces, *user_defined]
    types += [NORMAL] * len(pieces) + [USER_DEFINED] * len(user_defined)
    scores += [*pieces.values(), *[0.0] * len(user_defined)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
