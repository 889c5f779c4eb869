"""Byte-level BPE against upstream's test data, a slow implementation, and transformers."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama3jit.text.pretokenizers import UnknownPretokenizerWarning
from llama3jit.text.tokenizer import load_tokenizer
from tests.text import vocabularies as v

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {"gpt-2": [GPT2], "smollm": [r"\p{N}|[^\p{N}]+", GPT2]}
SPLITS |= {"llama-bpe": [CL100K % 3], "qwen2": [CL100K % 1]}

TEXTS = st.text(
    st.sampled_from("aeinst hLDVM'’ \t\n\r.,!12½²世é́ñЖ🚀\0") | st.characters(codec="utf-8"),
    max_size=40,
)


def byte_characters() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    # Latin-1 characters that the table keeps; the others are numbered from 256.
    alphabet = set(ByteLevel.alphabet())
    kept = [chr(i) if chr(i) in alphabet and i not in (0xAD,) else None for i in range(256)]
    spare = iter(range(256, 512))
    return [character or chr(next(spare)) for character in kept]


class SlowBPE:
    """Merges the pair of lowest rank until there is none, word for word."""

    def __init__(self, metadata: dict, pre: str) -> None:
        self.ids = {t: i for i, t in enumerate(metadata["tokenizer.ggml.tokens"])}
        self.ranks = {tuple(m.split()): r for r, m in enumerate(metadata["tokenizer.ggml.merges"])}
        self.pre = pre
        self.characters = byte_characters()

    def encode(self, text: str) -> list[int]:
        regex = pytest.importorskip("regex")
        if self.pre == "qwen2":
            import unicodedata

            text = unicodedata.normalize("NFC", text)
        words = [text]
        for pattern in SPLITS[self.pre]:
            words = [word for part in words for word in regex.findall(pattern, part)]
        assert "".join(words) == text
        return [index for word in words for index in self.word(word)]

    def word(self, word: str) -> list[int]:
        pieces = [self.characters[byte] for byte in word.encode()]
        if self.pre == "llama-bpe" and "".join(pieces) in self.ids:
            return [self.ids["".join(pieces)]]
        while True:
            pairs = list(pairwise(pieces))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, 1 << 30), default=None)
            if best not in self.ranks:
                return [self.ids[piece] for piece in pieces]
            merged, at = [], 0
            while at < len(pieces):
                both = tuple(pieces[at : at + 2]) == best
                merged.append("".join(pieces[at : at + 1 + both]))
                at += 1 + both
            pieces = merged


@pytest.mark.parametrize("pre", SPLITS)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
def test_ids_are_those_of_a_slow_implementation(pre: str, text: str) -> None:
    metadata = v.bytelevel(pre)
    tokenizer = load_tokenizer(metadata)
    ids = tokenizer.encode(text, add_bos=False)
    assert ids == SlowBPE(metadata, pre).encode(text)
    if pre != "qwen2":
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe"])
def test_real_vocabularies_agree_with_a_slow_implementation(pre: str) -> None:
    metadata = v.smollm2_metadata() if pre == "smollm" else v.llama3_metadata()
    assert load_tokenizer(metadata).encode(v.CORPUS, add_bos=False) == SlowBPE(
        metadata, pre
    ).encode(v.CORPUS)


def test_llama_3_cases() -> None:
    tokenizer = load_tokenizer(v.llama3_metadata())
    stem = v.LLAMA3_VOCAB.with_name(v.LLAMA3_VOCAB.name + ".inp")
    # The file of ids has a line for the end of the file of texts as well.
    texts = stem.read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    lines = stem.with_suffix(".out").read_text().splitlines()
    if not texts[-1].strip("\n"):
        texts.pop()
    assert len(texts) >= 46
    for text, line in zip(texts, lines, strict=False):
        ids = tokenizer.encode(text, add_bos=False, parse_special=True)
        assert ids == [int(word) for word in line.split()], text
        assert tokenizer.decode(ids) == text


def test_a_whole_word_is_one_token_in_llama_3() -> None:
    # ggml-org/llama.cpp#7193: by the merges alone it would be 11655, 26298, 83.
    assert load_tokenizer(v.llama3_metadata()).encode(" Việt", add_bos=False) == [101798]


@pytest.mark.parametrize("name", ["capital", "haiku", "code", "license"])
def test_golden_prompts_of_smollm2(name: str) -> None:
    golden = v.SHARED / "golden/smollm2-135m-q4_1.npz"
    if not golden.is_file():
        pytest.skip(f"{golden} is missing")
    tokenizer = load_tokenizer(v.smollm2_metadata())
    with np.load(golden) as arrays:
        ids = arrays[f"{name}/ids"].tolist()
    assert tokenizer.encode(tokenizer.decode(ids), parse_special=True) == ids


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_qwen2_is_transformers_qwen2() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    metadata = v.bytelevel("qwen2")
    vocab = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split()) for merge in metadata["tokenizer.ggml.merges"]]
    theirs = transformers.Qwen2Tokenizer(vocab=vocab, merges=merges)
    text = v.CORPUS + "e\u0301 I'LL 12345 \r\n\r\n  x"
    assert load_tokenizer(metadata).encode(text) == theirs.encode(text)


# Each is a run that a quadratic merge takes minutes for (openai/tiktoken#195).
RUNS = ["a" * 100_000, "_" * 50_000, " " * 100_000, "\n" * 100_000, "é" * 50_000, "a b" * 30_000]


@pytest.mark.parametrize("text", RUNS, ids=lambda text: repr(text[:3]))
def test_long_runs_are_fast(text: str) -> None:
    tokenizer = load_tokenizer(v.bytelevel("llama-bpe"))
    began = time.process_time()
    ids = tokenizer.encode(text + "!", add_bos=False)
    assert time.process_time() - began < 1.0
    assert tokenizer.decode(ids) == text + "!"


def test_a_llama_3_vocabulary_without_pre_is_known() -> None:
    # ollama/ollama#4126, ggml-org/llama.cpp#7006. A warning would be an error here.
    metadata = dict(v.llama3_metadata())
    del metadata["tokenizer.ggml.pre"]
    text = "3333 + 77777 it's"
    expected = load_tokenizer(v.llama3_metadata()).encode(text)
    assert load_tokenizer(metadata).encode(text) == expected
    small = v.bytelevel(None, control=("<|begin_of_text|>",))
    plain = v.bytelevel("llama-bpe", control=("<|begin_of_text|>",))
    assert load_tokenizer(small).encode(text) == load_tokenizer(plain).encode(text)


@pytest.mark.parametrize(
    ("pre", "nearest"), [(None, "gpt-2"), ("qwen25", "qwen2"), ("Llama-BPE2", "llama-bpe")]
)
def test_an_unknown_pre_warns_and_takes_the_nearest(pre: str | None, nearest: str) -> None:
    with pytest.warns(UnknownPretokenizerWarning, match=rf"tokenizer\.ggml\.pre.*'{nearest}'"):
        tokenizer = load_tokenizer(v.bytelevel(pre))
    ids = {
        kind: load_tokenizer(v.bytelevel(kind)).encode(v.CORPUS, add_bos=False) for kind in SPLITS
    }
    assert tokenizer.encode(v.CORPUS, add_bos=False) == ids[nearest]
    assert [kind for kind in ids if ids[kind] == ids[nearest]] == [nearest]


def test_an_unknown_pre_on_a_llama_3_vocabulary_is_llama_3s() -> None:
    with pytest.warns(UnknownPretokenizerWarning, match="'default', which is unknown.*'llama-bpe'"):
        tokenizer = load_tokenizer(v.bytelevel("default", control=("<|begin_of_text|>",)))
    expected = load_tokenizer(v.bytelevel("llama-bpe")).encode(v.CORPUS)
    assert tokenizer.encode(v.CORPUS, add_bos=False) == expected


def test_building_takes_little_time() -> None:
    metadata = v.smollm2_metadata()
    best = 1.0
    for _ in range(3):
        began = time.process_time()
        load_tokenizer(metadata)
        best = min(best, time.process_time() - began)
    assert best < 0.3
