"""SentencePiece-style merging against a slow implementation and the sentencepiece package."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama3jit.errors import ModelFormatError
from llama3jit.text.tokenizer import load_tokenizer
from tests.text import vocabularies as v

PIECES = st.dictionaries(
    st.text(st.sampled_from("ab▁é"), min_size=1, max_size=5),
    st.integers(-6, 0).map(float),  # few scores, so that many are equal
    max_size=40,
)
TEXTS = st.text(st.sampled_from("aaabb  éz\n"), max_size=40)


def slow_encode(metadata: dict, text: str, prefix: bool = True) -> list[int]:
    """Looks at all neighbours each time: highest score first, the leftmost among equals."""
    tokens = metadata["tokenizer.ggml.tokens"]
    plain = {t: i for i, t in enumerate(tokens) if metadata["tokenizer.ggml.token_type"][i] == 1}
    scores = metadata["tokenizer.ggml.scores"]
    pieces = list((" " * prefix + text).replace(" ", "▁")) if text else []
    while True:
        best = None
        for at in range(len(pieces) - 1):
            index = plain.get(pieces[at] + pieces[at + 1])
            if index is not None and (best is None or scores[index] > best[0]):
                best = (scores[index], at)
        if best is None:
            break
        pieces[best[1] : best[1] + 2] = ["".join(pieces[best[1] : best[1] + 2])]
    ids: list[int] = []
    for piece in pieces:
        ids += [plain[piece]] if piece in plain else [3 + byte for byte in piece.encode()]
    return ids


@settings(max_examples=400, deadline=None)
@given(pieces=PIECES, text=TEXTS)
def test_ids_are_those_of_a_slow_implementation(pieces: dict[str, float], text: str) -> None:
    metadata = v.sentencepiece({"▁": -7.0} | pieces)
    tokenizer = load_tokenizer(metadata)
    ids = tokenizer.encode(text)
    assert ids == [1, *slow_encode(metadata, text)]
    assert tokenizer.decode(ids, skip_special=True) == text


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory):
    """A sentencepiece processor trained on CORPUS, and its vocabulary as a GGUF has it."""
    package = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    stem = tmp_path_factory.mktemp("spm") / "m"
    text = Path(f"{stem}.txt")
    text.write_text(v.CORPUS, encoding="utf-8")
    package.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(stem), vocab_size=900, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, split_digits=True, character_coverage=0.99,
        user_defined_symbols=["<tool>"], minloglevel=2,
    )  # fmt: skip
    processor = package.SentencePieceProcessor(model_file=f"{stem}.model")
    size = processor.vocab_size()
    tests = {2: processor.is_unknown, 3: processor.is_control, 6: processor.is_byte}
    types = [next((k for k, test in tests.items() if test(i)), 1) for i in range(size)]
    tokens = [processor.id_to_piece(i) for i in range(size)]
    types[tokens.index("<tool>")] = 4
    return processor, {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [processor.get_score(i) for i in range(size)],
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
    }


def test_ids_and_text_are_those_of_sentencepiece(trained) -> None:
    processor, metadata = trained
    tokenizer = load_tokenizer(metadata)
    lines = [*v.CORPUS.splitlines(), "", " ", "   x  y ", "🏋️‍♀️ 你好", "aaaaaaaa", "\0", "a\tb"]
    for line in lines:
        ids = tokenizer.encode(line, add_bos=False)
        assert ids == processor.encode(line), line
        assert tokenizer.decode(ids) == processor.decode(ids) == line


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("theandLicense  .,\n0é你") | st.characters(codec="utf-8")))
def test_any_text_is_as_sentencepiece_has_it(trained, text: str) -> None:
    processor, metadata = trained
    # sentencepiece treats the mark for spaces as a space; it cannot be told from one.
    text = text.replace("▁", "")
    assert load_tokenizer(metadata).encode(text, add_bos=False) == processor.encode(text)


def test_words_that_run_on_are_merged_across_spaces() -> None:
    metadata = v.sentencepiece({"a▁b": -1.0, "a▁": -0.5, "▁": -2.0, "a": -3.0, "b": -3.0})
    tokenizer = load_tokenizer(metadata)
    ids = tokenizer.encode("a b", add_bos=False)
    assert ids == slow_encode(metadata, "a b")
    assert [tokenizer.piece(i) for i in ids] == [" ", "a b"]


def test_characters_without_token_or_bytes_are_unknown() -> None:
    metadata = v.sentencepiece({"a": -1.0, "▁": -1.0}, byte_tokens=False)
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.encode("aéézéa", add_bos=False) == [4, 3, 0, 3]
    no_unknown = {**metadata, "tokenizer.ggml.tokens": ["?", "<s>", "</s>", "a", "▁"]}
    no_unknown["tokenizer.ggml.token_type"] = [1, 3, 3, 1, 1]
    del no_unknown["tokenizer.ggml.unknown_token_id"]
    with pytest.raises(ModelFormatError, match="no token for the character 'é'"):
        load_tokenizer(no_unknown).encode("é")


def test_the_space_prefix_is_as_the_file_says() -> None:
    metadata = v.sentencepiece({"▁a": -1.0, "a": -2.0, "▁": -3.0})
    tokenizer = load_tokenizer(metadata)
    with_prefix = tokenizer.encode("a")
    assert [tokenizer.piece(i) for i in with_prefix] == ["<s>", " a"]
    assert tokenizer.decode(with_prefix, skip_special=True) == "a"
    assert tokenizer.decode(with_prefix, skip_special=True, continues=True) == " a"
    plain = load_tokenizer({**metadata, "tokenizer.ggml.add_space_prefix": False})
    assert [plain.piece(i) for i in plain.encode("a")] == ["<s>", "a"]
    assert plain.decode(with_prefix, skip_special=True) == " a"


def test_control_tokens_and_byte_names_in_text_stay_text() -> None:
    pieces = dict.fromkeys("<s>/0x41▁", -9.0) | {"<s": -1.0, "<0": -1.0, "x4": -1.0, "1>": -1.0}
    tokenizer = load_tokenizer(v.sentencepiece(pieces | {"<0x4": -0.5}))
    for text in ("<s>", "</s>", "<0x41>"):
        ids = tokenizer.encode(text, add_bos=False)
        assert min(ids) >= 3 + 256
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("<s></s>", parse_special=True) == [1, 2]


def test_user_defined_tokens_are_always_found() -> None:
    metadata = v.sentencepiece({"▁": -1.0, "x": -1.0}, user_defined=("<tool>", "xx"))
    tokenizer = load_tokenizer(metadata)
    pieces = [tokenizer.piece(i) for i in tokenizer.encode("x<tool>xxx", add_bos=False)]
    # A space goes before text that follows a token which is no text of its own.
    assert pieces == [" ", "x", "<tool>", "xx", " ", "x"]


@pytest.mark.parametrize("character", ["a", " ", "_"])
def test_long_runs_are_not_quadratic(character: str) -> None:
    mark = character.replace(" ", "▁")
    tokenizer = load_tokenizer(v.sentencepiece({mark * n: -1.0 / n for n in (1, 2, 4, 8, 16)}))

    def seconds(n: int) -> float:
        began = time.process_time()
        assert len(tokenizer.encode(character * n, add_bos=False)) >= n // 16
        return time.process_time() - began

    seconds(1000)
    assert seconds(100_000) < 2.0


def test_a_text_that_continues_gets_no_space() -> None:
    tokenizer = load_tokenizer(v.sentencepiece({"▁": -7.0, "▁a": -1.0, "a": -2.0}))
    assert tokenizer.decode(tokenizer.encode("a", add_bos=False), continues=True) == " a"
    ids = tokenizer.encode("a", add_bos=False, continues=True)
    assert tokenizer.decode(ids, continues=True) == "a"
