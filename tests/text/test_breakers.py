"""Texts that end a repetition, as tokens, against what they are made of."""

from itertools import product

import pytest

from llama3jit.text.breakers import breaker_tokens
from llama3jit.text.tokenizer import load_tokenizer
from tests.text import vocabularies as v


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(v.smollm2_metadata())


def test_every_token_that_holds_the_text_is_a_breaker(tokenizer):
    texts = ("\n", ":", '"', "*")
    found = breaker_tokens(tokenizer, texts)
    for token in range(tokenizer.vocab_size):
        data = tokenizer.token_bytes(token)
        whole = any(text.encode() in data for text in texts)
        assert (() in found.get(token, ())) == whole
    assert breaker_tokens(tokenizer, texts) is found


def test_a_text_of_several_tokens(tokenizer):
    found = breaker_tokens(tokenizer, ("User:\n",))
    ids = tokenizer.encode("User:\n", add_bos=False)
    assert len(ids) > 1
    assert tuple(ids[1:]) in found[ids[0]]
    for token, rests in found.items():
        data = tokenizer.token_bytes(token)
        for rest in rests:
            joined = data + b"".join(map(tokenizer.token_bytes, rest))
            assert b"User:\n" in joined


def test_a_text_that_is_cut_within_a_character():
    from tests.scripted import ByteTokenizer

    found = breaker_tokens(ByteTokenizer(), ("é!",))
    assert found == {0xC3: ((0xA9, ord("!")),)}


@pytest.mark.parametrize("text", ["aXb" * 30])
def test_long_texts_are_cut(text):
    from tests.scripted import ByteTokenizer

    (rests,) = breaker_tokens(ByteTokenizer(), (text,)).values()
    assert [len(rest) for rest in rests] == [20]
    assert "".join(map(chr, rests[0])) == text[1:21]


def test_bytes_of_breakers_in_a_sentencepiece_vocabulary():
    tokens = {"".join(pair): -1.0 for pair in product("ab:", repeat=2)}
    tokenizer = load_tokenizer(v.sentencepiece({"▁": -7.0} | tokens))
    found = breaker_tokens(tokenizer, (":",))
    held = {tokenizer.token_bytes(token) for token in found}
    assert held == {b":", b"a:", b"b:", b":a", b":b", b"::"}
