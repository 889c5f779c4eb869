"""What llama-cpp-python's README shows, with the import changed: each call as it stands there.

On a tiny model with random weights, and on the one that LLAMA3JIT_TEST_MODEL names. If
LLAMA_CPP_PYTHON_README names their README (or their wheel's METADATA, which holds it), its code
blocks run as they are, too.
"""

import json
import os
import re
from pathlib import Path

import pytest
from hub_server import pointing_at
from test_load import byte_vocabulary
from tiny_model import tiny_model

from llama3jit.errors import InvalidArgumentError

ROOT = Path(__file__).parent.parent.parent
REPO = "lmstudio-community/Qwen3.5-0.8B-GGUF"
ASK_JSON = """
answer = llm.create_chat_completion(
    messages=[
        {"role": "system", "content": "You are a helpful assistant that outputs in JSON."},
        {"role": "user", "content": "Who won the world series in 2020"},
    ],
    response_format=FORMAT,
    temperature=0.7,
)
"""
SCHEMA = {
    "type": "object",
    "properties": {"team_name": {"type": "string"}},
    "required": ["team_name"],
}
DETAIL = {
    "type": "object",
    "title": "UserDetail",
    "properties": {
        "name": {"title": "Name", "type": "string"},
        "age": {"title": "Age", "type": "integer"},
    },
    "required": ["name", "age"],
}
OPEN = 'from llama3jit import Llama\nllm = Llama(model_path="model.gguf"OPTIONS)\n'

# Name in docs/openai.md -> options of the constructor, and what is called.
EXAMPLES = {
    "Completion": (
        "",
        'answer = llm("Q: Name the planets in the solar system? A: ", max_tokens=32, '
        'stop=["Q:", "\\n"], echo=True)',
    ),
    "Streaming": (
        "",
        'answer = list(llm("Question: What are the names of the planets in the solar system? '
        'Answer: ", max_tokens=48, stop=["Q:", "\\n"], stream=True))',
    ),
    "Pulling from the hub": (
        "",
        f'llm = Llama.from_pretrained(repo_id="{REPO}", '
        'filename="*Q8_0.gguf", verbose=False)\nanswer = llm("x", max_tokens=1)',
    ),
    "Chat completion": (
        ', chat_format="llama-2"',
        "answer = llm.create_chat_completion(messages=["
        '{"role": "system", "content": "You are an assistant who perfectly describes images."}, '
        '{"role": "user", "content": "Describe this image in detail please."}])',
    ),
    "JSON mode": (', chat_format="chatml"', ASK_JSON.replace("FORMAT", '{"type": "json_object"}')),
    "JSON schema mode": (
        ', chat_format="chatml"',
        ASK_JSON.replace("FORMAT", f'{{"type": "json_object", "schema": {SCHEMA}}}'),
    ),
    "Function calling": (
        ', chat_format="chatml-function-calling"',
        "answer = llm.create_chat_completion(messages=["
        '{"role": "system", "content": "A chat between a curious user and an assistant."}, '
        '{"role": "user", "content": "Extract Jason is 25 years old"}], '
        f'tools=[{{"type": "function", "function": {{"name": "UserDetail", '
        f'"parameters": {DETAIL}}}}}], '
        'tool_choice={"type": "function", "function": {"name": "UserDetail"}})',
    ),
    "Embeddings": (
        ", embedding=True",
        'answer = llm.create_embedding("Hello, world!")\n'
        'several = llm.create_embedding(["Hello, world!", "Goodbye, world!"])',
    ),
    "Context window": (", n_ctx=2048", 'answer = llm("x", max_tokens=1)'),
}
# Name in docs/openai.md -> options, and the argument that is refused.
REFUSED = {
    "Functionary": (', chat_format="functionary-v2"', "chat_format is 'functionary-v2'"),
    "Multi-modal": (", chat_handler=object()", "chat_handler is <object"),
    "Speculative decoding": (", draft_model=object()", "draft_model is <object"),
}


def names_of_models():
    return ["tiny", *(["real"] if os.environ.get("LLAMA3JIT_TEST_MODEL") else [])]


@pytest.fixture(scope="module", params=names_of_models())
def path(request, tmp_path_factory):
    if request.param == "real":
        return os.environ["LLAMA3JIT_TEST_MODEL"]
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    extra = {"llama__context_length": 4096}
    return str(tiny_model(path, n_layer=1, **byte_vocabulary(), **extra).path)


@pytest.fixture
def hub(monkeypatch, path, tmp_path):
    """The hub's repository of the examples, with the model in it."""
    monkeypatch.setenv("LLAMA3JIT_MODELS", str(tmp_path / "models"))
    files = {"m-Q8_0.gguf": Path(path).read_bytes(), "a-text-model": b""}
    with pointing_at(REPO, files, monkeypatch):
        yield


def run(path, options, code):
    if "n_ctx" not in options and "tiny" in path:
        options += ", n_ctx=2048"  # a token is a byte there
    space = {}
    exec(OPEN.replace("model.gguf", path).replace("OPTIONS", options) + code, space)
    space["llm"].close()
    return space


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example(name, path, hub):
    if "JSON" in name or "Function" in name:
        pytest.importorskip("llguidance")
    check = CHECKS.get(name, lambda answer: answer["choices"][0]["text"])
    check(run(path, *EXAMPLES[name])["answer"])


def is_completion(answer):
    assert answer["choices"][0]["text"].startswith("Q: Name the planets in the solar system? A: ")
    assert answer["object"] == "text_completion"
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def is_stream(chunks):
    json.dumps(chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")


def is_chat(answer):
    assert answer["choices"][0]["message"]["role"] == "assistant"


def is_json(answer):
    [choice] = answer["choices"]
    if choice["finish_reason"] == "stop":  # random weights may write to the context's end
        assert isinstance(json.loads(choice["message"]["content"]), dict)


def is_call(answer):
    [choice] = answer["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "UserDetail"
    if choice["finish_reason"] == "tool_calls":
        found = json.loads(call["function"]["arguments"])
        assert isinstance(found["name"], str)
        assert isinstance(found["age"], int)


def is_embedding(answer):
    tokens = answer["data"][0]["embedding"]
    assert len(tokens) == answer["usage"]["prompt_tokens"]  # no pooling unless it is asked for
    assert len(tokens[0]) >= 64


CHECKS = {
    "Completion": is_completion,
    "Streaming": is_stream,
    "Chat completion": is_chat,
    "JSON mode": is_json,
    "JSON schema mode": is_json,
    "Function calling": is_call,
    "Embeddings": is_embedding,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name, path):
    options, message = REFUSED[name]
    with pytest.raises(InvalidArgumentError, match=message):
        run(path, options, "")


def test_the_page_lists_them_all():
    page = (ROOT / "docs/openai.md").read_text()
    for names, verdict in ((EXAMPLES, "passes"), (REFUSED, "refused")):
        for name in names:
            assert re.search(rf"^\| {re.escape(name)} \| {verdict}", page, re.MULTILINE), name


def their_blocks():
    source = os.environ.get("LLAMA_CPP_PYTHON_README")
    if not source:
        reason = "LLAMA_CPP_PYTHON_README names no README"
        return [pytest.param("", marks=pytest.mark.skip(reason=reason), id="none")]
    text = Path(source).read_text("utf-8")
    text = text[text.index("## High-level API") : text.index("## OpenAI Compatible Web Server")]
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("code", their_blocks())
def test_their_readme_as_it_is(code, path, hub):
    pytest.importorskip("llguidance")
    if not re.search(r"Llama(\.from_pretrained)?\(", code):
        pytest.skip("calls nothing")
    if "tiny" in path:
        pytest.skip("of 512 tokens of a byte each")
    code = code.replace("llama_cpp", "llama3jit")
    code = re.sub(r'model_path="[^"]*"', f'model_path="{path}"', code)
    refused = re.search(r"llama3jit\.llama_(chat_format|speculative|tokenizer)", code)
    space = {"Llama": __import__("llama3jit").Llama}
    if refused:
        with pytest.raises(ModuleNotFoundError, match=r"llama3jit\.llama_"):
            exec(code, space)
    else:
        exec(code, space)
