"""What both kinds of vocabulary share: BOS and EOS, special tokens, odd text, broken metadata."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama3jit.errors import InvalidArgumentError, ModelFormatError, UnsupportedError
from llama3jit.text.tokenizer import load_tokenizer
from tests.text import vocabularies as v

SPECIALS = ("<|begin_of_text|>", "<|eot_id|>", "<|end_of_text|>")


def small(**more):
    metadata = v.bytelevel("llama-bpe", control=SPECIALS, user_defined=("<tool>", "=>"))
    bos = metadata["tokenizer.ggml.tokens"].index("<|begin_of_text|>")
    metadata |= {"tokenizer.ggml.bos_token_id": bos, "tokenizer.ggml.eos_token_id": bos + 2}
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in more.items()}
    return load_tokenizer({key: value for key, value in metadata.items() if value is not None})


def test_bos_is_as_the_file_says() -> None:
    for told, expected in ((None, True), (True, True), (False, False)):
        tokenizer = small(add_bos_token=told)
        assert (tokenizer.encode("x")[0] == tokenizer.bos_id) is expected
        assert tokenizer.encode("x", add_bos=True)[0] == tokenizer.bos_id
        assert tokenizer.encode("x", add_bos=False)[0] != tokenizer.bos_id
    assert small(add_bos_token=False, pre="gpt-2").add_bos is False
    assert load_tokenizer(v.bytelevel("gpt-2")).add_bos is False
    assert load_tokenizer(v.sentencepiece({"a": 0.0})).add_bos is True


def test_one_bos_whoever_adds_it() -> None:
    # abetlen/llama-cpp-python#1501, #1537; ggml-org/llama.cpp#15086.
    tokenizer = small(add_bos_token=True)
    text = "<|begin_of_text|>hello"
    assert tokenizer.encode(text, parse_special=True).count(tokenizer.bos_id) == 1
    assert tokenizer.encode(text, parse_special=True) == tokenizer.encode("hello")
    # What the text itself says twice is not taken away.
    twice = tokenizer.encode("<|begin_of_text|>" + text, parse_special=True)
    assert twice.count(tokenizer.bos_id) == 2
    plain = tokenizer.encode(text)
    assert plain[0] == tokenizer.bos_id
    assert plain.count(tokenizer.bos_id) == 1
    assert tokenizer.decode(plain, skip_special=True) == text


def test_eos_is_as_the_file_says() -> None:
    tokenizer = small(add_eos_token=True, add_bos_token=False)
    assert tokenizer.encode("x")[-1] == tokenizer.eos_id
    assert tokenizer.encode("x<|end_of_text|>", parse_special=True).count(tokenizer.eos_id) == 1
    assert tokenizer.eos_id not in tokenizer.encode("x", add_eos=False)
    assert tokenizer.eos_id not in small().encode("x")


def test_no_bos_to_add() -> None:
    tokenizer = load_tokenizer(v.bytelevel("llama-bpe"))
    assert tokenizer.bos_id is None
    assert tokenizer.encode("") == []
    with pytest.raises(InvalidArgumentError, match="BOS was asked for"):
        tokenizer.encode("x", add_bos=True)


def test_special_tokens_are_text_unless_parsed() -> None:
    tokenizer = small()
    text = "a<|eot_id|>b<|begin_of_text|><|eot_id"
    plain = tokenizer.encode(text, add_bos=False)
    assert not tokenizer.special_ids & set(plain)
    assert tokenizer.decode(plain) == text
    parsed = tokenizer.encode(text, add_bos=False, parse_special=True)
    assert [i for i in parsed if i in tokenizer.special_ids] == [
        tokenizer.find_special("<|eot_id|>"),
        tokenizer.bos_id,
    ]
    assert tokenizer.decode(parsed) == text
    assert tokenizer.decode(parsed, skip_special=True) == "ab<|eot_id"


def test_a_mark_keeps_a_special_token_text() -> None:
    tokenizer = small()
    marked = tokenizer.encode("<|eot_id|><\ufdd0|eot_id|>", parse_special=True, mark="\ufdd0")
    expected = tokenizer.encode("<|eot_id|>", add_bos=False)
    assert marked == [tokenizer.bos_id, tokenizer.find_special("<|eot_id|>"), *expected]


def test_user_defined_tokens_are_always_found() -> None:
    tokenizer = small()
    ids = tokenizer.encode("a=><tool>b", add_bos=False)
    assert [tokenizer.piece(i) for i in ids] == ["a", "=>", "<tool>", "b"]
    assert tokenizer.decode(ids, skip_special=True) == "a=><tool>b"


def test_control_tokens_that_pose_as_user_defined_stay_text() -> None:
    metadata = v.bytelevel("gpt-2", user_defined=("<|im_end|>", "<end_of_turn>"))
    tokenizer = load_tokenizer(metadata)
    assert not tokenizer.special_ids & set(tokenizer.encode("<|im_end|><end_of_turn>"))
    assert len(tokenizer.end_ids) == 2


def test_every_end_of_turn_token_ends() -> None:
    # ollama/ollama#3759: eos_token_id names one of three.
    metadata = dict(v.llama3_metadata())
    tokens = list(metadata["tokenizer.ggml.tokens"])
    tokens[128008] = "<|eom_id|>"
    metadata["tokenizer.ggml.tokens"] = tokens
    assert load_tokenizer(metadata).end_ids == {128001, 128008, 128009}
    assert small(eos_token_id=None).end_ids == {801, 802}
    assert small(eot_token_id=5, eom_token_id=np.uint32(6)).end_ids == {5, 6, 801, 802}
    # The text of an end token, but an ordinary token.
    plain = v.bytelevel("gpt-2")
    plain["tokenizer.ggml.tokens"] = [*plain["tokenizer.ggml.tokens"], "</s>"]
    plain["tokenizer.ggml.token_type"] = [*plain["tokenizer.ggml.token_type"], 1]
    assert load_tokenizer(plain).end_ids == frozenset()


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters() | st.sampled_from("\ud83d\udc80\ude00\udcff\0é"), max_size=20))
@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_any_str_is_tokenised(kind: str, text: str) -> None:
    metadata = v.bytelevel("llama-bpe") if kind == "bytes" else v.sentencepiece({"▁": -1.0})
    tokenizer = load_tokenizer(metadata)
    ids = tokenizer.encode(text, add_bos=False, parse_special=True)
    if text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text):
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_bytes_that_are_no_utf_8_stay_bytes(kind: str) -> None:
    # ggml-org/llama.cpp#8691
    metadata = v.bytelevel("llama-bpe") if kind == "bytes" else v.sentencepiece({"▁": -1.0})
    tokenizer = load_tokenizer(metadata | {"tokenizer.ggml.add_space_prefix": False})
    raw = b"a\xe6\xad b\xff"
    ids = tokenizer.encode(raw.decode("utf-8", "surrogateescape"), add_bos=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == raw
    assert tokenizer.decode(ids) == raw.decode("utf-8", "replace")
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00\ud83d", add_bos=False)) == "😀�"


def test_bytes_without_a_token_do_not_become_control_tokens() -> None:
    metadata = v.bytelevel("gpt-2")
    tokens = ["<none>" if t == "ÿ" else t for t in metadata["tokenizer.ggml.tokens"]]
    end = tokens.index("<|endoftext|>") if "<|endoftext|>" in tokens else 0
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.unknown_token_id": end}
    tokenizer = load_tokenizer(metadata | changed)
    ids = tokenizer.encode("a\udcffb", add_bos=False)
    assert tokenizer.decode(ids) == "a\ufffdb"
    assert end not in ids


def test_bytes_of_a_token_are_raw() -> None:
    # ollama/ollama#13497: a token may hold a part of a character.
    tokenizer = load_tokenizer(v.bytelevel("llama-bpe"))
    text = "🏋️‍♀️ 你好"
    ids = tokenizer.encode(text)
    parts = [tokenizer.token_bytes(i) for i in ids]
    assert b"".join(parts) == text.encode()
    assert any(tokenizer.piece(i) == "�" for i in ids)


@pytest.mark.parametrize("index", [-1, 805, 1 << 40])
def test_ids_out_of_range(index: int) -> None:
    tokenizer = small()
    for use in (tokenizer.token_bytes, tokenizer.piece, lambda i: tokenizer.decode([0, i])):
        with pytest.raises(InvalidArgumentError, match=rf"token id {index} .*\(0 to 804\)"):
            use(index)


def test_numpy_ids_and_arrays() -> None:
    metadata = v.sentencepiece({"▁a": -1.0, "▁": -2.0, "a": -3.0})
    arrays = {
        "tokenizer.ggml.scores": np.array(metadata["tokenizer.ggml.scores"], np.float32),
        "tokenizer.ggml.token_type": np.array(metadata["tokenizer.ggml.token_type"], np.int32),
        "tokenizer.ggml.bos_token_id": np.uint32(1),
        "tokenizer.ggml.add_bos_token": np.bool_(True),
    }
    tokenizer = load_tokenizer(metadata | arrays)
    ids = tokenizer.encode("a a")
    assert ids == load_tokenizer(metadata).encode("a a")
    assert all(type(i) is int for i in ids)
    assert tokenizer.decode(np.array(ids, np.int32), skip_special=True) == "a a"


def test_equal_tokens_do_not_break_others() -> None:
    metadata = v.bytelevel("gpt-2", control=("<|eot_id|>", "<|eot_id|>"), user_defined=("a", "the"))
    tokenizer = load_tokenizer(metadata)
    expected = load_tokenizer(v.bytelevel("gpt-2")).encode("of a b")
    assert tokenizer.encode("<|eot_id|>", parse_special=True) == [800]
    assert tokenizer.piece(801) == "<|eot_id|>"
    assert tokenizer.decode(tokenizer.encode("of a b")) == "of a b"
    metadata["tokenizer.ggml.token_type"] = [1] * 804
    plain = load_tokenizer(metadata)
    assert plain.encode("of a b") == expected
    control = {**metadata, "tokenizer.ggml.token_type": [3, *[1] * 803]}
    control["tokenizer.ggml.tokens"] = ["b", *metadata["tokenizer.ggml.tokens"][1:]]
    assert load_tokenizer(control).encode("of a b") == expected


BROKEN = {
    "eos beyond the vocabulary": ({"eos_token_id": 4294967295}, r"eos_token_id is 4294967295.*804"),
    "bos beyond the vocabulary": ({"bos_token_id": 805}, "bos_token_id is 805"),
    "unknown is no id": ({"unknown_token_id": "x"}, "unknown_token_id is 'x'"),
    "no merges": ({"merges": None}, r"ggml\.merges is missing"),
    "no tokens": ({"tokens": None}, r"ggml\.tokens is missing"),
    "empty tokens": ({"tokens": []}, r"ggml\.tokens is \[\]"),
    "tokens that are a number": ({"tokens": 3}, r"ggml\.tokens is 3"),
    "a token that is a number": ({"tokens": ["a", 7]}, r"ggml\.tokens\[1\] is 7"),
    "too few types": ({"token_type": [1, 1]}, r"token_type has 2 entries.*has 805"),
    "types that are text": ({"token_type": ["1"] * 805}, r"token_type is \['1'"),
    "a flag that is text": ({"add_bos_token": "yes"}, r"add_bos_token is 'yes'"),
    "a merge of one": ({"merges": ["Ġ"]}, r"merges\[0\] is 'Ġ'"),
    "a merge of three": ({"merges": ["e n", "e n d"]}, r"merges\[1\] is 'e n d'"),
    "a merge of strangers": ({"merges": ["Ġ Ж"]}, r"merges\[0\] is 'Ġ Ж', but 'Ж' is not"),
    "a merge to a stranger": ({"merges": ["! #"]}, r"merges\[0\] is '! #', but '!#' is not"),
    "a merge to a stranger, of few": (
        {"tokens": ["a", "b"], "merges": ["a b"], "token_type": None, "bos_token_id": None}
        | {"eos_token_id": None},
        r"merges\[0\] is 'a b', but 'ab' is not",
    ),
    "a pre that is an array": ({"pre": np.array([1, 2])}, r"ggml\.pre is array"),
    "a pre that is a number": ({"pre": 1.5}, r"ggml\.pre is 1\.5"),
    "a model that is an array": ({"model": np.array([], np.int32)}, r"ggml\.model is array"),
    "a bos that is an array": ({"bos_token_id": np.array([1, 2])}, r"bos_token_id is array"),
    "merges that are numbers": ({"merges": [1]}, r"merges\[0\] is 1"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_metadata_is_named(case: str) -> None:
    more, message = BROKEN[case]
    with pytest.raises(ModelFormatError, match=message):
        small(**more)


def test_broken_sentencepiece_metadata_is_named() -> None:
    metadata = v.sentencepiece({"a": 0.0})
    one = {"model": "llama", "tokens": ["a"], "scores": [0.0], "eos_token_id": 4294967295}
    with pytest.raises(ModelFormatError, match=r"eos_token_id is 4294967295; .* 0 to 0"):
        load_tokenizer({f"tokenizer.ggml.{key}": value for key, value in one.items()})
    for scores in (None, [0.0], [float("nan")] * 260):
        with pytest.raises(ModelFormatError, match=r"ggml\.scores"):
            load_tokenizer({**metadata, "tokenizer.ggml.scores": scores})
    tokens = ["<unk>", "<s>", "</s>", "<0xZZ>", *metadata["tokenizer.ggml.tokens"][4:]]
    with pytest.raises(ModelFormatError, match=r"tokens\[3\] is '<0xZZ>'"):
        load_tokenizer({**metadata, "tokenizer.ggml.tokens": tokens})


def test_other_tokenizers_are_named() -> None:
    with pytest.raises(ModelFormatError, match=r"tokenizer\.ggml\.model is missing"):
        load_tokenizer({})
    with pytest.raises(UnsupportedError, match=r"tokenizer\.ggml\.model is 'bert'"):
        load_tokenizer({"tokenizer.ggml.model": "bert"})
    with pytest.raises(InvalidArgumentError, match="text to tokenise is bytes"):
        small().encode(b"x")


def test_merges_to_control_tokens_are_left_out() -> None:
    metadata = v.bytelevel("gpt-2", control=("!#",))
    metadata["tokenizer.ggml.merges"] = ["! #", *metadata["tokenizer.ggml.merges"]]
    assert load_tokenizer(metadata).decode([800]) == "!#"
    assert 800 not in load_tokenizer(metadata).encode("!#")


def test_threads_share_a_tokenizer() -> None:
    for metadata in (v.bytelevel("llama-bpe"), v.sentencepiece({"▁": -1.0, "th": -2.0})):
        tokenizer = load_tokenizer(metadata)
        expected = load_tokenizer(metadata).encode(v.CORPUS, parse_special=True)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(partial(tokenizer.encode, parse_special=True), [v.CORPUS] * 4))
        assert found == [expected] * 4


def test_importing_costs_nothing() -> None:
    heavy = "{'numpy', 'numba', 'tokenizers', 'jinja2'}"
    modules = "llama3jit.text.tokenizer, llama3jit.text.chat, llama3jit.text.streaming"
    code = f"import sys, {modules}; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
