"""Short texts straight from a file's strings: the same ids and the same complaints as by lists."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from gguf_writer import write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tokenizer import BROKEN, SPECIALS

from llama3jit.errors import ModelFormatError
from llama3jit.files.gguf import open_gguf
from llama3jit.text.short_texts import LONGEST_TEXT, LONGEST_WORD
from llama3jit.text.string_index import StringIndex, key_of, keys_of
from llama3jit.text.tokenizer import Tokenizer, load_tokenizer
from tests.text import vocabularies as v

KINDS = ["gpt-2", "smollm", "llama-bpe", "qwen2"]
PIECES = [
    "It's ",
    "THE'LL",
    "   ",
    "\r\n\n",
    "12345",
    "return self",
    *"aeinsthLDVM' \t\n\r\v\f.,!12_\x1c",
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.characters(max_codepoint=127), max_size=40).map(
    "".join
)


def from_file(path: Path, metadata: dict) -> Tokenizer:
    """The tokenizer of a file with these metadata."""
    arrays = {
        key: np.array(value, np.int32) if set(map(type, value)) == {int} else value
        for key, value in metadata.items()
        if isinstance(value, list)
    }
    with open_gguf(write_gguf(path, {**metadata, **arrays})) as file:
        return load_tokenizer(file.metadata)


@cache
def both(kind: str) -> tuple[Tokenizer, Tokenizer]:
    """Of a file that is closed by now, and of lists; two vocabularies are real ones."""
    if kind in ("llama3", "smollm2"):
        lists = load_tokenizer(v.llama3_metadata() if kind == "llama3" else v.smollm2_metadata())
        path = v.LLAMA3_VOCAB if kind == "llama3" else v.smollm2_path()
        with open_gguf(path) as file:
            return load_tokenizer(file.metadata), lists
    metadata = v.bytelevel(kind, control=SPECIALS, user_defined=("<tool>", "=>"))
    with tempfile.TemporaryDirectory() as folder:
        return from_file(Path(folder) / "m.gguf", metadata), load_tokenizer(metadata)


@pytest.mark.parametrize("kind", [*KINDS, "llama3", "smollm2"])
@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_ids_are_those_of_tokenizers(kind: str, text: str) -> None:
    short, whole = both(kind)
    if kind == "smollm2":  # it has no tokens for some control characters
        text = "".join(c for c in text if c.isprintable() or c in "\t\n\r")
    assert short._model._short.encode(text) == whole._model.encode(text)
    assert short.encode(text) == whole.encode(text)
    assert short._model._short is not None, "it was left to tokenizers"
    assert whole._model._short is None


@pytest.mark.parametrize("kind", ["llama3", "smollm2"])
def test_a_page_of_text(kind: str) -> None:
    short, whole = both(kind)
    page = "".join(filter(str.isascii, v.CORPUS))[:LONGEST_TEXT]
    assert short._model._short.encode(page) == whole._model.encode(page)


@pytest.mark.parametrize("kind", [*KINDS, "llama3", "smollm2"])
def test_every_token_is_the_same(kind: str) -> None:
    short, whole = both(kind)
    ids = range(whole.vocab_size)
    assert [short.token_bytes(i) for i in ids] == [whole.token_bytes(i) for i in ids]
    for name in ("special_ids", "end_ids", "bos_id", "eos_id", "add_bos", "special_texts"):
        assert getattr(short, name) == getattr(whole, name), name


@pytest.mark.parametrize(
    "text", ["é", "a" * (LONGEST_WORD + 1), "a " * LONGEST_TEXT, "\ud83d", "naïve 🚀"]
)
def test_other_texts_are_left_to_tokenizers(text: str, tmp_path: Path) -> None:
    metadata = v.bytelevel("llama-bpe")
    tokenizer, whole = from_file(tmp_path / "m.gguf", metadata), load_tokenizer(metadata)
    assert tokenizer.encode("a") == whole.encode("a")
    assert tokenizer._model._short is not None
    assert tokenizer.encode(text) == whole.encode(text)
    assert tokenizer._model._short is None
    assert tokenizer.encode("a'll b") == whole.encode("a'll b")


def test_short_texts_import_no_tokenizers(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    from_file(path, v.bytelevel("gpt-2"))
    code = (
        "import sys; from llama3jit.files.gguf import open_gguf\n"
        "from llama3jit.text.tokenizer import load_tokenizer\n"
        f"print(load_tokenizer(open_gguf({str(path)!r}).metadata).encode('the fox'))\n"
        "assert 'tokenizers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(load_tokenizer(v.bytelevel("gpt-2")).encode("the fox"))


# A file cannot hold an array of mixed types, and numbers in it are NumPy's.
IN_FILES = sorted(BROKEN.keys() - {"a token that is a number", "merges that are numbers"})


@pytest.mark.parametrize("case", IN_FILES)
def test_a_broken_file_is_named(case: str, tmp_path: Path) -> None:
    more, message = BROKEN[case]
    metadata = v.bytelevel("llama-bpe", control=SPECIALS, user_defined=("<tool>", "=>"))
    bos = metadata["tokenizer.ggml.tokens"].index(SPECIALS[0])
    metadata |= {"tokenizer.ggml.bos_token_id": bos, "tokenizer.ggml.eos_token_id": bos + 2}
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in more.items()}
    with pytest.raises(ModelFormatError, match=message):
        from_file(
            tmp_path / "m.gguf",
            {key: value for key, value in metadata.items() if value is not None},
        )


def test_equal_tokens_equal_merges_and_merges_to_control_tokens(tmp_path: Path) -> None:
    metadata = v.bytelevel("gpt-2", control=("!#",))
    merges = metadata["tokenizer.ggml.merges"]
    twice = {**metadata, "tokenizer.ggml.merges": [*merges, merges[0], merges[5]]}
    same = {**metadata, "tokenizer.ggml.tokens": [*metadata["tokenizer.ggml.tokens"][:-1], "he"]}
    control = {**metadata, "tokenizer.ggml.merges": ["! #", *merges]}
    for i, changed in enumerate((twice, same, control)):
        found = from_file(tmp_path / f"{i}.gguf", changed)
        for text in ("!# the then here", "in the end of a b", "aaa bbb"):
            assert found.encode(text) == load_tokenizer(changed).encode(text)


STRINGS = st.lists(
    st.binary(max_size=3)
    | st.binary(max_size=4).map(lambda middle: b"12345678" + middle + b"abcdefgh"),
    min_size=1,
    max_size=40,
)


@given(strings=STRINGS, other=st.binary(max_size=12))
def test_an_index_finds_all_equal_strings(strings: list[bytes], other: bytes) -> None:
    lengths = np.array([len(s) for s in strings])
    offsets = np.cumsum(lengths) - lengths
    data = b"".join(strings)
    index = StringIndex(data, offsets, lengths)
    for text in (*strings, other):
        assert sorted(index.find(text)) == [i for i, s in enumerate(strings) if s == text]
    keys = keys_of(data, offsets, lengths)
    assert keys.tolist() == [key_of(s) for s in strings]
    assert index.has_keys(keys)
    assert index.has_keys(keys_of(other, np.array([0]), np.array([len(other)]))) == (
        key_of(other) in keys.tolist()
    )
