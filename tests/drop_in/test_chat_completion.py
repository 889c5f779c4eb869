"""create_chat_completion on a scripted model: shapes, streams, tools, logprobs."""

import dataclasses
import inspect
import json
from importlib.util import find_spec

import pytest
from scripted import ASSISTANT, END, LIMITS, noise, peak, replying, scripted_llama

from llama3jit.errors import InvalidArgumentError, UnsupportedError

# create_chat_completion of llama-cpp-python 0.3.36, by llama.py.
PARAMETERS = {
    "functions": None,
    "function_call": None,
    "tools": None,
    "tool_choice": None,
    "temperature": 0.2,
    "top_p": 0.95,
    "top_k": 40,
    "min_p": 0.05,
    "typical_p": 1.0,
    "stream": False,
    "stop": None,  # [] there
    "seed": None,
    "response_format": None,
    "max_tokens": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repeat_penalty": 1.0,
    "tfs_z": 1.0,
    "mirostat_mode": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "model": None,
    "logits_processor": None,
    "grammar": None,
    "logit_bias": None,
    "logprobs": None,
    "top_logprobs": None,
}
HI = [{"role": "user", "content": "hi"}]
WEATHER = {
    "name": "weather",
    "description": "the weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]
HERMES = 'Let me see. <tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
LLAMA = '{"name": "weather", "parameters": {"city": "Oslo"}}'


@pytest.fixture
def make():
    opened = []

    def build(script):
        both = scripted_llama(script, dataclasses.replace(LIMITS, n_ctx=1024, n_blocks=512))
        opened.append(both)
        return both.llama

    yield build
    for both in opened:
        both.llama.close()
        both.llama._engine._core.scheduler.pool.check([])


def assembled(chunks):
    """The message that a stream's deltas make, as a client of OpenAI's puts it together."""
    message, reason, calls = {"content": ""}, None, {}
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        [choice] = chunk["choices"]
        assert reason is None, "something came after the end"
        reason = choice["finish_reason"]
        delta = choice["delta"]
        message.update({"role": delta["role"]} if "role" in delta else {})
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            found = calls.setdefault(call["index"], {"function": {"name": "", "arguments": ""}})
            found.update({key: call[key] for key in ("id", "type") if key in call})
            for key in ("name", "arguments"):
                found["function"][key] += call["function"].get(key, "")
    if calls:
        message["tool_calls"] = [calls[i] for i in sorted(calls)]
    return message, reason


def test_the_signature_is_that_of_llama_cpp_python(make):
    given = inspect.signature(make(noise).create_chat_completion).parameters
    assert list(given)[: len(PARAMETERS) + 1] == ["messages", *PARAMETERS]
    assert {name: given[name].default for name in PARAMETERS} == PARAMETERS


def test_the_shape(make):
    answer = make(replying("Hello!")).create_chat_completion(HI, model="m")
    assert answer.keys() == {"id", "object", "created", "model", "choices", "usage"}
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello!"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


def test_a_stream(make):
    llm = make(replying("Hello, 好!"))
    chunks = list(llm.create_chat_completion(HI, stream=True))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert assembled(chunks) == ({"role": "assistant", "content": "Hello, 好!"}, "stop")
    assert assembled(llm.create_chat_completion(HI, stream=True, max_tokens=3))[1] == "length"


def test_logprobs_have_raw_bytes(make):
    llm = make(replying("a好"))
    given = {"logprobs": True, "top_logprobs": 2}
    table = llm.create_chat_completion(HI, **given)["choices"][0]["logprobs"]
    assert bytes(one["bytes"][0] for one in table["content"]) == "a好".encode()
    assert [len(one["top_logprobs"]) for one in table["content"]] == [2] * 4
    first = table["content"][0]
    assert first["token"] == "a"
    assert first["top_logprobs"][0] == {key: first[key] for key in ("token", "bytes", "logprob")}
    chunks = llm.create_chat_completion(HI, stream=True, **given)
    tables = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [one for t in tables if t for one in t["content"]] == table["content"]
    none = llm.create_chat_completion(HI, logprobs=True)["choices"][0]["logprobs"]
    assert none["content"][0]["top_logprobs"] == []


@pytest.mark.parametrize(("reply", "content"), [(HERMES, "Let me see."), (LLAMA, None)])
def test_tool_calls(make, reply, content):
    llm = make(replying(reply))
    [choice] = llm.create_chat_completion(HI, tools=TOOLS)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == content
    assert "function_call" not in message
    [call] = message["tool_calls"]
    assert call["type"] == "function"
    assert call["id"].startswith("call_")
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    chunks = list(llm.create_chat_completion(HI, tools=TOOLS, stream=True))
    streamed, reason = assembled(chunks)
    assert reason == "tool_calls"
    assert streamed["content"] == (content or "")
    assert streamed["tool_calls"][0]["function"] == call["function"]
    assert streamed["tool_calls"][0]["id"].startswith("call_")
    assert len(chunks) > 8, "arguments come as they are written"


def test_marks_that_are_special_tokens_are_seen(make):
    mark = 256  # a special token that a reply never has otherwise
    wanted = [*b"Hm.", mark, *LLAMA.encode(), END]

    def script(history):
        since = history[::-1].index(ASSISTANT)
        return peak(wanted[min(since, len(wanted) - 1)])

    llm = make(script)
    tokenizer = llm._tokenizer
    tokenizer.find_special = {"<|python_tag|>": mark}.get
    plain = tokenizer.token_bytes
    tokenizer.token_bytes = lambda token: b"<|python_tag|>" if token == mark else plain(token)
    [choice] = llm.create_chat_completion(HI, tools=TOOLS, logprobs=True)["choices"]
    assert choice["message"]["content"] == "Hm."
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert len(choice["logprobs"]["content"]) == len(wanted) - 1
    [choice] = llm.create_chat_completion(HI)["choices"]
    assert choice["message"]["content"] == f"Hm.{LLAMA}"


def test_no_tools_no_calls(make):
    llm = make(replying(LLAMA))
    for given in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}):
        [choice] = llm.create_chat_completion(HI, **given)["choices"]
        assert choice["message"] == {"role": "assistant", "content": LLAMA}
        assert choice["finish_reason"] == "stop"


def test_functions_are_tools_of_old(make):
    llm = make(replying(LLAMA))
    [choice] = llm.create_chat_completion(HI, functions=[WEATHER], function_call="auto")["choices"]
    assert choice["finish_reason"] == "function_call"
    assert choice["message"]["function_call"] == choice["message"]["tool_calls"][0]["function"]
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in llm.create_chat_completion(HI, functions=[WEATHER], stream=True)
    ]
    calls = [delta["function_call"] for delta in deltas if "function_call" in delta]
    assert calls[0]["name"] == "weather"
    assert json.loads("".join(call["arguments"] for call in calls)) == {"city": "Oslo"}


def test_the_model_is_told_of_tools_calls_and_results(make):
    seen = []
    llm = make(replying("ok", marker=ASSISTANT))
    history = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": "snow"},
    ]

    class Template:
        takes_tools = False

        def encode(self, messages):
            seen.append(messages)
            return [1, ASSISTANT]

    class ToolTemplate(Template):
        takes_tools = True

        def encode(self, messages, *, tools=None):
            seen.append((messages, tools))
            return [1, ASSISTANT]

    llm.__dict__["_template"] = Template()
    llm.create_chat_completion(history, tools=TOOLS)
    system, user, assistant, results = seen.pop()
    assert system["content"].startswith("Be brief.\n\n")
    assert json.dumps(TOOLS[0]) in system["content"]
    assert user == history[1]
    assert assistant == {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    }
    responses = "<tool_response>\nrain\n</tool_response>\n<tool_response>\nsnow\n</tool_response>"
    assert results == {"role": "user", "content": responses}

    llm.__dict__["_template"] = ToolTemplate()
    llm.create_chat_completion(history, tools=TOOLS)
    messages, tools = seen.pop()
    assert list(tools) == TOOLS
    assert messages[2]["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    assert history[2]["tool_calls"][0]["function"]["arguments"] == '{"city": "Oslo"}'


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_forced_call_keeps_to_its_schema(make, choice):
    pytest.importorskip("llguidance")
    llm = make(noise)
    [found] = llm.create_chat_completion(
        HI,
        tools=TOOLS,
        tool_choice=choice,
        temperature=0,
        max_tokens=500,
        logit_bias={34: 5.0, 125: 8.0, 92: -90.0},
    )["choices"]
    assert found["finish_reason"] == "tool_calls"
    [call] = found["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert list(json.loads(call["function"]["arguments"])) == ["city"]


def test_forced_calls_with_definitions(make):
    pytest.importorskip("llguidance")
    parameters = {
        "type": "object",
        "properties": {"size": {"$ref": "#/$defs/Size"}},
        "required": ["size"],
        "$defs": {"Size": {"enum": ["small", "large"]}},
        "additionalProperties": False,
    }
    one = {"type": "function", "function": {"name": "shirt", "parameters": parameters}}
    [found] = make(noise).create_chat_completion(HI, tools=[one], tool_choice="required")["choices"]
    arguments = json.loads(found["message"]["tool_calls"][0]["function"]["arguments"])
    assert arguments["size"] in ("small", "large")
    other = {**parameters, "$defs": {"Size": {"enum": [1]}}}
    two = {"type": "function", "function": {"name": "shoe", "parameters": other}}
    with pytest.raises(InvalidArgumentError, match="two tools have different schemas"):
        make(noise).create_chat_completion(HI, tools=[one, two], tool_choice="required")


def test_json_and_grammars(make):
    pytest.importorskip("llguidance")
    import llama3jit

    llm = make(noise)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    grammar = llama3jit.LlamaGrammar
    for given in (
        {"response_format": {"type": "json_object", "schema": schema}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        {"grammar": grammar.from_json_schema(json.dumps(schema))},
    ):
        [choice] = llm.create_chat_completion(HI, seed=4, **given)["choices"]
        assert json.loads(choice["message"]["content"])["a"] in (1, 2)
    source = 'root ::= ("yes" | "no") "!"'
    for given in (grammar.from_string(source), source):
        [choice] = llm.create_chat_completion(HI, grammar=given)["choices"]
        assert choice["message"]["content"] in ("yes!", "no!")
    assert llm("x", grammar=source)["choices"][0]["text"] in ("yes!", "no!")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tfs_z": 2.0}, "^tfs_z is 2.0"),
        ({"top_logprobs": 2}, "top_logprobs is given without logprobs"),
        ({"logprobs": 5}, "^logprobs is 5: expected True or False"),
        ({"n": 1000}, "^n is 1000"),
        ({"tools": TOOLS, "functions": [WEATHER]}, "functions or function_call is given beside"),
        ({"tools": [{"name": "x"}]}, r"^tools\[0\] is"),
        ({"tools": TOOLS * 2}, "has a name twice"),
        ({"tools": TOOLS, "tool_choice": "always"}, "^tool_choice is 'always'"),
        ({"tools": TOOLS, "tool_choice": {"function": {"name": "x"}}}, "names 'x', which is not"),
        ({"tool_choice": "required"}, "there are no tools"),
        (
            {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
            "leave one out",
        ),
        ({"user": "me"}, "unknown argument 'user'"),
        ({"response_format": {"type": "xml"}}, "^response_format is"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_refused_by_name_at_once(make, given, message, stream):
    with pytest.raises(InvalidArgumentError, match=message):
        make(noise).create_chat_completion(HI, stream=stream, **given)


def test_objects_of_the_package_openai(make):
    llm = make(replying(LLAMA))
    if find_spec("openai") is None:
        with pytest.raises(UnsupportedError, match="pip install openai"):
            llm.create_chat_completion_openai_v1(HI)
        return
    answer = llm.create_chat_completion_openai_v1(HI, tools=TOOLS)
    assert answer.choices[0].message.tool_calls[0].function.name == "weather"
    chunks = list(llm.create_chat_completion_openai_v1(HI, stream=True))
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_end_of_a_call_that_is_cut_short(make):
    [choice] = make(replying(HERMES)).create_chat_completion(HI, tools=TOOLS, max_tokens=60)[
        "choices"
    ]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith("{")
