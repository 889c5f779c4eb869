"""Tools in prompts: by templates that know of them, and in the system prompt of others."""

import json

import pytest

from llama3jit.text.tool_prompt import as_plain_chat, with_arguments_as_data
from tests.text.test_chat_templates import PUBLISHED, TOOLS, open_template, source

CALLS = [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}]
TALK = [
    {"role": "user", "content": "Call it"},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "c1", "content": "ok"},
]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates_know_of_tools_or_not(name):
    template, _ = open_template(source(name), PUBLISHED[name])
    assert template.takes_tools == (name != "SmolLM2")


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "SmolLM2"])
def test_arguments_as_text_and_as_data_make_one_prompt(name):
    template, _ = open_template(source(name), PUBLISHED[name])
    data = [{"name": "f", "arguments": {"x": [1]}}]
    other = [TALK[0], {"role": "assistant", "tool_calls": [{"function": data[0]}]}, TALK[2]]
    given = {"tools": TOOLS, "date_string": "x"}
    text = template.render(with_arguments_as_data(TALK), **given)
    assert text == template.render(other, **given)
    assert '{"x": [1]}' in text


def test_a_template_without_tools_is_told_in_words():
    template, _ = open_template(source("SmolLM2"), PUBLISHED["SmolLM2"])
    text = template.render(as_plain_chat(TALK, TOOLS))
    assert json.dumps(TOOLS[0], ensure_ascii=False) in text
    assert '<tool_call>\n{"name": "f", "arguments": {"x": [1]}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>" in text


def test_what_is_given_stays_as_it_was():
    before = json.dumps(TALK)
    as_plain_chat(TALK, TOOLS)
    with_arguments_as_data(TALK)
    assert json.dumps(TALK) == before


def test_old_forms():
    talk = [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "function_call": {"name": "f", "arguments": "no JSON"},
            "content": "",
        },
        {"role": "function", "name": "f", "content": "r"},
    ]
    _, call, result = with_arguments_as_data(talk)
    assert call["tool_calls"][0]["function"] == {"name": "f", "arguments": "no JSON"}
    assert result["role"] == "tool"
