"""The options of the samplers reach the library by its own names."""

import io
import json
import re

import pytest
from scripted import noise, scripted_llama
from typer.main import get_command

from llama3jit.arguments import Sampling
from llama3jit.cli.app import build, run
from llama3jit.cli.sampling import ROWS
from llama3jit.engine.params import LIMITS, SamplingParams


@pytest.fixture
def seen(monkeypatch):
    """What stream_chat was called with; the model is scripted."""
    calls = []

    def load(model, **options):
        llm = scripted_llama(noise).llama
        stream_chat = llm.stream_chat

        def record(messages, **sampling):
            calls.append(sampling)
            return stream_chat(messages, **({"max_tokens": 3} | sampling))

        llm.stream_chat = record
        return llm

    monkeypatch.setattr("llama3jit.api.load", load)
    return calls


NUMBERS = {
    "--repeat-penalty": 1.25,
    "--repeat-last-n": -1,
    "--presence-penalty": -0.5,
    "--frequency-penalty": 0.5,
    "--dry-multiplier": 0.75,
    "--dry-base": 1.5,
    "--dry-allowed-length": 3,
    "--dry-penalty-last-n": 99,
    "--typical-p": 0.5,
    "--top-n-sigma": 1.5,
    "--xtc-probability": 0.5,
    "--xtc-threshold": 0.25,
    "--dynatemp-range": 0.5,
    "--dynatemp-exponent": 2.0,
    "--mirostat-mode": 2,
    "--mirostat-tau": 4.5,
    "--mirostat-eta": 0.5,
    "--min-tokens": 2,
}


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_every_number_reaches_the_library(seen, command, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    words = [word for flag, value in NUMBERS.items() for word in (flag, str(value))]
    prompt = ["-p", "hi"] if command == "generate" else []
    assert run([command, "m", *prompt, *words]) == 0, capsys.readouterr().err
    assert seen == [{flag[2:].replace("-", "_"): value for flag, value in NUMBERS.items()}]


def test_what_is_not_given_is_left_to_the_library(seen):
    assert run(["generate", "m", "-p", "hi"]) == 0
    assert seen == [{}]


def test_every_parameter_has_an_option():
    """But those that say what to report, which the command line does not show."""
    command = get_command(build("generate"))
    (only,) = command.commands.values()
    names = {parameter.name for parameter in only.params}
    fields = set(SamplingParams.__dataclass_fields__) - {"logprobs", "top_logprobs"}
    plural = {"dry_sequence_breakers": "dry_sequence_breaker"}
    assert {plural.get(name, name) for name in fields} <= names
    assert set(SamplingParams.__dataclass_fields__) <= set(Sampling.__annotations__)


def test_bounds_are_those_of_the_library():
    limits = {name: (low, high) for name, _, low, high, _ in LIMITS}
    infinity = float("inf")
    for flag, _, least, most, _, _ in ROWS:
        if (name := flag[2:].replace("-", "_")) in limits:
            low, high = limits[name]
            assert (least, most) == (
                None if low == -infinity else low,
                None if high == infinity else high,
            ), flag


def test_defaults_in_the_help_are_those_of_the_library():
    defaults = SamplingParams()
    for flag, *_, text in ROWS:
        said = re.search(r"\[default: (-?[\d.]+)\]", text)
        if said:
            assert float(said[1]) == getattr(defaults, flag[2:].replace("-", "_")), flag


def test_lists_and_biases(seen):
    words = ["--logit-bias", "97=100", "--logit-bias", "98=-inf"]
    words += ["--dry-sequence-breaker", "\n", "--dry-sequence-breaker", "ab"]
    assert run(["generate", "m", "-p", "hi", *words]) == 0
    assert seen == [
        {"logit_bias": {97: 100.0, 98: -float("inf")}, "dry_sequence_breakers": ["\n", "ab"]}
    ]


def test_a_breaker_of_a_variable_is_one(seen, monkeypatch):
    monkeypatch.setenv("LLAMA3JIT_DRY_SEQUENCE_BREAKER", " \n b")
    monkeypatch.setenv("LLAMA3JIT_LOGIT_BIAS", " 97=-1.5 ")
    assert run(["generate", "m", "-p", "hi"]) == 0
    assert seen == [{"logit_bias": {97: -1.5}, "dry_sequence_breakers": [" \n b"]}]


@pytest.mark.parametrize("text", ["97", "a=1", "97=x", "=", "97:1"])
def test_a_bias_that_is_none_is_refused(seen, capsys, text):
    assert run(["generate", "m", "-p", "hi", "--logit-bias", text]) == 2
    assert "--logit-bias is" in capsys.readouterr().err


def test_replies_keep_to_a_form(seen, capsys, tmp_path):
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    schema["additionalProperties"] = False
    (tmp_path / "s.json").write_text(json.dumps(schema))
    (tmp_path / "g.lark").write_text('start: "yes" | "no"')
    long = ["-n", "60"]
    for given in (json.dumps(schema), str(tmp_path / "s.json")):
        assert run(["generate", "m", "-p", "x", "--json-schema", given, *long]) == 0
        assert json.loads(capsys.readouterr().out)["n"] in (1, 2)
    assert run(["generate", "m", "-p", "x", "--regex", "[ab]{4}", *long]) == 0
    assert re.fullmatch("[ab]{4}\n", capsys.readouterr().out)
    assert run(["generate", "m", "-p", "x", "--grammar", str(tmp_path / "g.lark"), *long]) == 0
    assert capsys.readouterr().out in ("yes\n", "no\n")
    assert run(["generate", "m", "-p", "x", "--json-schema", "{}", "-n", "1"]) == 0
    assert seen[-1]["response_format"] == {"type": "json_object"}
    capsys.readouterr()
    assert run(["generate", "m", "-p", "x", "--regex", "a", "--json-schema", "{}"]) == 2
    assert "--json-schema and --regex are both given" in capsys.readouterr().err
    assert run(["generate", "m", "-p", "x", "--grammar", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_help_comes_in_groups(capsys):
    assert run(["generate", "--help"]) == 0
    text = capsys.readouterr().out
    titles = re.findall(r"^(\S[^\n]*):$", text, re.MULTILINE)
    assert titles == [
        "Arguments",
        "Options",
        "Sampling",
        "Against repetition",
        "More samplers",
        "Form of the text",
        "Device and memory",
    ]
