"""Streamed text: the parts join to the whole, and nothing of a stop string is shown."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama3jit.errors import InvalidArgumentError
from llama3jit.text.streaming import TextStream
from llama3jit.text.tokenizer import Tokenizer, load_tokenizer
from tests.text import vocabularies as v


class Tokens:
    """Tokens of any bytes; the last is special. As much of a tokenizer as a stream needs."""

    def __init__(self, pieces: list[bytes], space_prefix: bool = False) -> None:
        self.pieces = [*pieces, b"<end>"]
        self.special_ids = frozenset({len(pieces)})
        self.add_space_prefix = space_prefix

    def token_bytes(self, index: int) -> bytes:
        return self.pieces[index]

    decode = Tokenizer.decode


def stream(tokens, ids: list[int], stop=(), **more) -> tuple[list[str], TextStream]:
    text = TextStream(tokens, stop, **more)
    parts = []
    for index in ids:
        parts.append(text.push(index))
        assert text.text == "".join(parts)
        if text.stopped:
            break
    parts.append(text.finish())
    assert text.text == "".join(parts)
    return parts, text


def cut(whole: str, stop: list[str]) -> tuple[str, int]:
    """The text before the stop that starts first."""
    starts = [whole.find(s) for s in stop if s in whole]
    return (whole[: min(starts)], len(starts)) if starts else (whole, 0)


BYTES = st.binary(min_size=1, max_size=3) | st.sampled_from(
    [b"a", b"b", b"ab", b" ", b" a", "é".encode(), "你".encode()[:2], "🚀".encode()[1:]]
)
STOPS = st.lists(st.text(st.sampled_from("ab é你\ufffd"), min_size=1, max_size=4), max_size=4)


@settings(max_examples=1000, deadline=None)
@given(data=st.data(), pieces=st.lists(BYTES, min_size=1, max_size=6), stop=STOPS,
       space_prefix=st.booleans(), continues=st.booleans())  # fmt: skip
def test_parts_join_to_the_whole(data, pieces, stop, space_prefix: bool, continues: bool) -> None:
    tokens = Tokens(pieces, space_prefix)
    ids = data.draw(st.lists(st.integers(0, len(pieces)), max_size=20))
    _, text = stream(tokens, ids, stop, continues=continues)
    whole = tokens.decode(ids, skip_special=True, continues=continues)
    expected, stops = cut(whole, stop)
    assert text.text == expected
    assert (text.stopped is not None) is bool(stops)
    if text.stopped:
        assert whole.startswith(expected + text.stopped)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from("abé你"), max_size=20), stop=STOPS, sizes=st.data())
def test_the_cut_into_tokens_does_not_matter(text: str, stop: list[str], sizes) -> None:
    raw, pieces = text.encode(), []
    while raw:
        size = sizes.draw(st.integers(1, 5))
        pieces.append(raw[:size])
        raw = raw[size:]
    _, found = stream(Tokens(pieces), list(range(len(pieces))), stop)
    _, whole = stream(Tokens([text.encode()]), [0], stop)
    assert (found.text, found.stopped) == (whole.text, whole.stopped)


def test_a_character_over_several_tokens() -> None:
    # abetlen/llama-cpp-python#57, #372
    tokenizer = load_tokenizer(v.bytelevel("llama-bpe"))
    text = "🏋️‍♀️ 你好"
    ids = tokenizer.encode(text)
    parts, _ = stream(tokenizer, ids)
    assert "".join(parts) == text
    assert "�" not in "".join(parts)
    assert "" in parts[:-1]
    parts, _ = stream(tokenizer, ids[:-1])
    assert parts[-1] == "�"
    assert "".join(parts) == tokenizer.decode(ids[:-1])


def test_a_stop_over_several_tokens_is_not_shown() -> None:
    # vllm-project/vllm#3574
    parts, text = stream(
        Tokens([b"ok DEF", b"G", b"HI", b"J!", b"x"]), [0, 1, 2, 3, 4], ["DEFGHIJ"]
    )
    assert parts == ["ok ", "", "", "", ""]
    assert text.stopped == "DEFGHIJ"
    assert (text.push(4), text.finish(), text.text) == ("", "", "ok ")


def test_what_was_held_back_comes_at_the_end() -> None:
    # ggml-org/llama.cpp#9867
    parts, text = stream(Tokens([b"ok DEF"]), [0], ["DEFGHIJ"])
    assert parts == ["ok ", "DEF"]
    assert text.stopped is None
    parts, _ = stream(Tokens([b"ok DEF", b"GO"]), [0, 1], ["DEFGHIJ"])
    assert parts == ["ok ", "DEFGO", ""]


@pytest.mark.parametrize(
    ("stop", "text", "shown", "stopped"),
    [
        (["c", "bcd"], "abcd", "a", "bcd"),  # starts first, though the other ends first
        (["c", "bcd"], "abce", "ab", "c"),
        (["c", "bcd"], "abc", "ab", "c"),
        (["ab", "a"], "xab", "x", "a"),
        (["aab"], "aaab", "a", "aab"),
        (["\n\n"], "a\n", "a\n", None),
        ([], "abc", "abc", None),
    ],
)
def test_the_stop_that_starts_first_wins(stop, text, shown, stopped) -> None:
    for pieces in ([text.encode()], [bytes([byte]) for byte in text.encode()]):
        _, found = stream(Tokens(pieces), list(range(len(pieces))), stop)
        assert (found.text, found.stopped) == (shown, stopped)


def test_special_tokens_are_no_text() -> None:
    parts, _ = stream(Tokens([b"a", b"b"]), [0, 2, 1, 2], ["<end>"])
    assert parts == ["a", "", "b", "", ""]


@cache
def _pieces() -> Tokenizer:
    return load_tokenizer(v.sentencepiece({"▁": -3.0, "▁a": -1.0, "a": -2.0, "▁▁": -0.5}))


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.sampled_from([1, 2, 3 + 0xE2, 3 + 0x20, 259, 260, 261, 262]), max_size=8))
@pytest.mark.parametrize("continues", [False, True])
def test_the_space_before_a_text(ids: list[int], continues: bool) -> None:
    parts, _ = stream(_pieces(), ids, continues=continues)
    assert "".join(parts) == _pieces().decode(ids, skip_special=True, continues=continues)


def test_bad_arguments_are_named() -> None:
    for stop in ("abc", ["a", ""], [1]):
        with pytest.raises(InvalidArgumentError, match="stop is "):
            TextStream(Tokens([b"a"]), stop)
    with pytest.raises(InvalidArgumentError, match="token id 999"):
        TextStream(_pieces()).push(999)
