"""The command tokenize, as a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gguf_writer import write_gguf
from tests.text import vocabularies as v

CONTROL = ("<|begin_of_text|>", "<|eot_id|>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metadata = v.bytelevel("llama-bpe", control=CONTROL) | {"general.architecture": "llama"}
    return write_gguf(tmp_path_factory.mktemp("model") / "m.gguf", metadata)


def run(*arguments: str | Path, stdin: bytes = b"", **environ: str):
    done = subprocess.run(
        [sys.executable, "-m", "llama3jit", "tokenize", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONIOENCODING": "utf-8"} | environ,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def test_ids_and_pieces(model: Path) -> None:
    code, out, err = run(model, "the e<|eot_id|>", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["ids"][0] == 800
    assert "".join(found["pieces"]) == "<|begin_of_text|>the e<|eot_id|>"
    assert 801 not in found["ids"]
    code, lines, _ = run(model, "the e<|eot_id|>")
    assert [int(line.split()[0]) for line in lines.splitlines()] == found["ids"]
    assert json.loads(lines.splitlines()[1].split(maxsplit=1)[1]) == found["pieces"][1]


def test_options(model: Path) -> None:
    assert json.loads(run(model, "<|eot_id|>", "--json", "--special")[1])["ids"] == [800, 801]
    bare = json.loads(run(model, "<|eot_id|>", "--json", "--special", "--no-bos")[1])
    assert bare["ids"] == [801]
    told = run(model, "<|eot_id|>", "--json", LLAMA3JIT_SPECIAL="1", LLAMA3JIT_BOS="0")
    assert json.loads(told[1]) == bare


def test_stdin_of_any_bytes(model: Path) -> None:
    code, out, err = run(model, "-", "--json", stdin="a\u4f60".encode() + b"\xe6\xad\n")
    assert (code, err) == (0, "")
    assert "".join(json.loads(out)["pieces"]).startswith("<|begin_of_text|>a")
    assert json.loads(out)["ids"][-1] != json.loads(out)["ids"][-2]


def test_output_that_is_not_utf_8(model: Path) -> None:
    code, out, err = run(model, "é", "--json", PYTHONIOENCODING="ascii")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(run(model, "é", "--json")[1])


def test_errors_are_one_line(model: Path, tmp_path: Path) -> None:
    code, out, err = run("no-such-model", "x")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "no-such-model" in err
    code, out, err = run(write_gguf(tmp_path / "n.gguf", {"general.architecture": "x"}), "x")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "tokenizer.ggml.model is missing" in err
    code, out, err = run(model)
    assert (code, out) == (2, "")
