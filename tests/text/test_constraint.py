"""Whatever the logits, what comes out under a constraint parses, as Python's json and re see it."""

import json
import re
import sys

import numpy as np
import pytest

from llama3jit.errors import InvalidArgumentError, UnsupportedError
from llama3jit.text.constraint import make_constraint
from llama3jit.text.tokenizer import load_tokenizer
from tests.scripted import ByteTokenizer
from tests.text import vocabularies as v

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "ages": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "kind": {"enum": ["cat", "dog", "élan"]},
    },
    "required": ["name", "ages", "kind"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}


@pytest.fixture(scope="module", params=["bytes", "smollm2", "llama3", "sentencepiece"])
def tokenizer(request):
    if request.param == "bytes":
        return ByteTokenizer()
    if request.param == "sentencepiece":
        words = ["▁", '{"', '":', "▁cat", "cat", "▁[", "▁{", "é", "name", "an", "▁the", "12", "▁▁▁"]
        return load_tokenizer(v.sentencepiece({word: -1.0 * i for i, word in enumerate(words)}))
    return load_tokenizer(getattr(v, f"{request.param}_metadata")())


def generate(tokenizer, response_format, seed, most=400, wish=None):
    """(text, whether it ended by itself) under random logits, with a wish for some bytes."""
    constraint = make_constraint(response_format, tokenizer, tokenizer.end_ids).copy()
    rng = np.random.default_rng(seed)
    wished = np.zeros(tokenizer.vocab_size, np.float32)
    for token in range(tokenizer.vocab_size if wish else 0):
        wished[token] = 30.0 * (tokenizer.token_bytes(token).strip(wish) == b"")
    data = b""
    for _ in range(most):
        logits = rng.standard_normal(tokenizer.vocab_size).astype(np.float32) + wished
        constraint.allow(logits)
        token = int(logits.argmax())
        assert logits[token] > -np.inf
        if token in tokenizer.end_ids:
            return data.decode(), True
        assert token not in tokenizer.special_ids
        data += tokenizer.token_bytes(token)
        constraint.accept(token)
        if constraint.finished:
            return data.decode(), True
    return data.decode(errors="replace"), False


def check_schema(text):
    value = json.loads(text)
    assert set(value) == {"name", "ages", "kind"}
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 12
    assert all(isinstance(age, int) for age in value["ages"])
    assert len(value["ages"]) <= 3
    assert value["kind"] in SCHEMA["properties"]["kind"]["enum"]


@pytest.mark.parametrize("seed", range(4))
def test_a_schema_is_kept(tokenizer, seed):
    text, ended = generate(tokenizer, JSON_SCHEMA, seed)
    if ended:
        check_schema(text)
    else:  # digits of a number without end
        assert re.search(r"\d{50}", text)


@pytest.mark.parametrize("seed", range(4))
def test_any_object_is_json(tokenizer, seed):
    text, ended = generate(tokenizer, {"type": "json_object"}, seed)
    if ended:
        assert isinstance(json.loads(text), dict)


def test_a_model_that_wants_nothing_but_spaces_gets_no_further_than_a_few(tokenizer):
    form = {"type": "json_object", "schema": {"type": "object", "maxProperties": 0}}
    for seed in range(3):
        text, ended = generate(tokenizer, form, seed, wish=b" \n\t\r")
        assert ended
        assert json.loads(text) == {}
        assert len(text) < 40
    integers = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    form = {"type": "json_object", "schema": integers | {"additionalProperties": False}}
    text, ended = generate(tokenizer, form, 1, wish=b" \n\t\r")
    assert ended
    assert json.loads(text)["n"] in (1, 2)


def test_a_regular_expression_is_of_the_whole_text(tokenizer):
    pattern = r"(?:yes|no), [a-c]{2,6}\."
    for seed in range(6):
        text, ended = generate(tokenizer, {"type": "regex", "regex": pattern}, seed)
        assert ended
        assert re.fullmatch(pattern, text)


def test_a_text_that_may_go_on_ends_by_an_end_token(tokenizer):
    constraint = make_constraint({"type": "regex", "regex": "a+"}, tokenizer, tokenizer.end_ids)
    every = range(tokenizer.vocab_size)
    token = next(i for i in every if tokenizer.token_bytes(i) == b"a")
    logits = np.zeros(tokenizer.vocab_size, np.float32)
    constraint.allow(logits)
    ends = sorted(tokenizer.end_ids)
    assert (logits[ends] == -np.inf).all()
    constraint.accept(token)
    assert not constraint.finished
    logits = np.zeros(tokenizer.vocab_size, np.float32)
    constraint.allow(logits)
    assert (logits[ends] == 0).all()


def test_a_grammar_in_lark(tokenizer):
    grammar = 'start: "(" start ")" | NUMBER\nNUMBER: /[0-9]{1,3}/'
    text, ended = generate(tokenizer, {"type": "grammar", "grammar": grammar}, 5)
    if ended:
        opened = text.count("(")
        assert re.fullmatch(rf"\({{{opened}}}\d{{1,3}}\){{{opened}}}", text)


def test_copies_go_on_apart():
    constraint = make_constraint({"type": "regex", "regex": "ab|ac"}, ByteTokenizer(), [257])
    constraint.accept(ord("a"))
    other = constraint.copy()
    other.accept(ord("b"))
    assert other.finished
    assert not constraint.finished
    constraint.accept(ord("c"))
    assert constraint.finished


def test_a_vocabulary_without_end_tokens():
    tokenizer = ByteTokenizer()
    constraint = make_constraint({"type": "regex", "regex": "ab?"}, tokenizer, ())
    constraint.accept(ord("a"))
    logits = np.zeros(tokenizer.vocab_size, np.float32)
    constraint.allow(logits)
    assert np.flatnonzero(logits == 0).tolist() == [ord("b")]


def test_text_is_no_constraint():
    assert make_constraint({"type": "text"}, ByteTokenizer(), [257]) is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("json", "expected a dict whose 'type' is one of text, json_object"),
        ({}, "expected a dict whose 'type'"),
        ({"type": "xml"}, "expected a dict whose 'type'"),
        ({"type": "json_schema"}, "has the schema None: expected a dict"),
        ({"type": "json_schema", "json_schema": {"schema": 3}}, "has the schema 3"),
        ({"type": "json_object", "schema": "{"}, "the schema is no JSON"),
        ({"type": "json_object", "schema": {"type": "nonsense"}}, "nonsense"),
        ({"type": "regex"}, "has regex None: expected text"),
        ({"type": "regex", "regex": "[0-"}, "of type 'regex': .*invalid regex"),
        ({"type": "grammar", "grammar": "start: nowhere"}, "of type 'grammar': .*nowhere"),
    ],
)
def test_what_cannot_be_is_refused(given, message):
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        make_constraint(given, ByteTokenizer(), [257])
    assert "\n" not in str(caught.value)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'llama3jit\[constrained\]'"):
        make_constraint({"type": "json_object"}, ByteTokenizer(), [257])
