"""Tool calls out of replies, whole and cut into parts everywhere."""

import json
import random
from itertools import pairwise

import pytest

from llama3jit.text.tool_calls import CallPiece, TextPiece, ToolCallParser

WEATHER = '{"name": "weather", "arguments": {"city": "Oslo", "days": [1, {"a": "}]\\""}]}}'
LLAMA = '{"name": "weather", "parameters": {"city": "São Paulo"}}'
TYPED = '{"type": "function", "name": "weather", "parameters": {"city": "Rome"}}'
SWAPPED = '{"arguments": {"city": "Oslo"}, "name": "weather"}'

# reply -> text, [(name, arguments)]
CASES = [
    ("Just words.", "Just words.", []),
    ("  spaces and\nlines \n", "  spaces and\nlines \n", []),
    (
        f"<tool_call>\n{WEATHER}\n</tool_call>",
        "",
        [("weather", '{"city": "Oslo", "days": [1, {"a": "}]\\""}]}')],
    ),
    (
        f"Let me see.\n\n<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>{SWAPPED}</tool_call>",
        "Let me see.",
        [
            ("weather", '{"city": "Oslo", "days": [1, {"a": "}]\\""}]}'),
            ("weather", '{"city": "Oslo"}'),
        ],
    ),
    (f"<tool_call>{SWAPPED}</tool_call> done", " done", [("weather", '{"city": "Oslo"}')]),
    (LLAMA, "", [("weather", '{"city": "São Paulo"}')]),
    (f"\n{TYPED}\n", "", [("weather", '{"city": "Rome"}')]),
    (
        f"{LLAMA}; {TYPED}",
        "",
        [("weather", '{"city": "São Paulo"}'), ("weather", '{"city": "Rome"}')],
    ),
    (f"<|python_tag|>{LLAMA}", "", [("weather", '{"city": "São Paulo"}')]),
    (f"Looking.<|python_tag|>{LLAMA}", "Looking.", [("weather", '{"city": "São Paulo"}')]),
    (
        '<|python_tag|>brave_search.call(query="what\'s new")',
        "",
        [("brave_search", '{"query": "what\'s new"}')],
    ),
    ("<|python_tag|>print(1)\nx = {}", "", [("python", '{"code": "print(1)\\nx = {}"}')]),
    ('{"name": "nobody", "parameters": {}}', '{"name": "nobody", "parameters": {}}', []),
    ('<tool_call>{"name": "nobody", "arguments": {}}</tool_call>', "", [("nobody", "{}")]),
    ('<tool_call>{"name": "weather"}</tool_call>', "", [("weather", "{}")]),
    (
        '<tool_call>{"name": "weather", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        [("weather", '{"a": 1}')],
    ),
    ('{"answer": 42}', '{"answer": 42}', []),
    ("{not json at all", "{not json at all", []),
    ("<tool_call>oops</tool_call>", "<tool_call>oops</tool_call>", []),
    ("a < b <tool", "a < b <tool", []),
    # Cut short: a call that has begun stays a call, one that has not stays text.
    ('<tool_call>{"name": "weather", "arguments": {"ci', "", [("weather", '{"ci')]),
    ('<tool_call>{"name": "wea', '<tool_call>{"name": "wea', []),
    ("", "", []),
]


def parse(parts):
    parser = ToolCallParser(["weather", "python"])
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.finish()
    text = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
    calls = []
    for piece in pieces:
        if isinstance(piece, CallPiece):
            if piece.name is not None:
                assert piece.index == len(calls)
                calls.append((piece.name, ""))
            assert piece.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + piece.arguments)
    assert parser.calls == len(calls)
    return text, calls


@pytest.mark.parametrize(("reply", "text", "calls"), CASES)
def test_a_whole_reply(reply, text, calls):
    assert parse([reply]) == (text, calls)


@pytest.mark.parametrize(("reply", "text", "calls"), CASES)
def test_parts_of_every_size_give_the_same(reply, text, calls):
    for size in (1, 2, 3, 7):
        parts = [reply[at : at + size] for at in range(0, len(reply), size)]
        assert parse(parts) == (text, calls)
    cuts = random.Random(0)
    for _ in range(20):
        bounds = sorted(cuts.choices(range(len(reply) + 1), k=4))
        bounds = [0, *bounds, len(reply)]
        assert parse([reply[a:b] for a, b in pairwise(bounds)]) == (
            text,
            calls,
        )


def test_arguments_come_as_they_are_written():
    parser = ToolCallParser([])
    parser.push('<tool_call>{"name": "f", "arguments": ')
    assert parser.push('{"text": "aaa') == [
        CallPiece(0, "f", ""),
        CallPiece(0, None, '{"text": "aaa'),
    ]
    assert parser.push("bbb") == [CallPiece(0, None, "bbb")]
    assert parser.push('"}}') == [CallPiece(0, None, '"}')]


def test_a_hundred_thousand_characters_take_no_time():
    reply = '<tool_call>{"name": "f", "arguments": {"x": "' + "a" * 100_000 + '"}}</tool_call>'
    text, calls = parse(reply[at : at + 4] for at in range(0, len(reply), 4))
    assert text == ""
    assert len(json.loads(calls[0][1])["x"]) == 100_000
    reply = '{"x": "' + "a" * 100_000 + '"}'
    assert parse(reply[at : at + 4] for at in range(0, len(reply), 4)) == (reply, [])
