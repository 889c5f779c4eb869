"""Batch files: what becomes of each line, and of a run that ends early."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from llama3jit.batch import Totals, left_to_do, mend, read_tasks, run_batch
from llama3jit.cli.app import run
from llama3jit.errors import (
    CancelledError,
    ContextOverflowError,
    DeviceError,
    InvalidArgumentError,
)

ROOT = Path(__file__).parent.parent
CHAT = "/v1/chat/completions"


class Fake:
    """In place of a Llama: answers with what it was asked."""

    def __init__(self, pause: float = 0.0) -> None:
        self.pause, self.closed = pause, threading.Event()
        self.together, self.most, self.calls = 0, 0, []
        self._lock = threading.Lock()

    def _answer(self, kind, body, text):
        with self._lock:
            self.calls.append(text)
            self.together += 1
            self.most = max(self.most, self.together)
        try:
            if text == "too long":
                raise ContextOverflowError("a prompt of 9 tokens; the context holds 8")
            if text == "no device":
                raise DeviceError("the device is gone")
            if text == "nan":
                return {"object": kind, "value": float("nan")}
            if self.closed.wait(self.pause):
                raise CancelledError("the model was closed")
            return {"object": kind, "asked": body, "usage": {"total_tokens": 5}}
        finally:
            with self._lock:
                self.together -= 1

    def create_chat_completion(self, messages, max_tokens=None, model=None):
        return self._answer("chat.completion", messages, messages[-1]["content"])

    def create_completion(self, prompt, max_tokens=16):
        return self._answer("text_completion", prompt, prompt)

    def create_embedding(self, input):
        return self._answer("list", input, input)

    def close(self):
        self.closed.set()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def request(custom_id, text="hi", url=CHAT, **changes):
    body = {
        CHAT: {"messages": [{"role": "user", "content": text}]},
        "/v1/completions": {"prompt": text},
        "/v1/embeddings": {"input": text},
    }.get(url, {})
    line = {"custom_id": custom_id, "method": "POST", "url": url, "body": body} | changes
    return json.dumps(line)


def results(path):
    data = path.read_text()
    assert data.endswith("\n") or not data
    found = [json.loads(line, parse_constant=pytest.fail) for line in data.splitlines()]
    for one in found:
        assert list(one) == ["id", "custom_id", "response", "error"]
        assert (one["response"] is None) != (one["error"] is None)
    return found


@pytest.fixture
def use(monkeypatch):
    """Make the command open a fake model; gives it, and what it was opened with."""
    llm, opened = Fake(), []

    def load(model, **given):
        opened.append((model, given))
        llm.closed.clear()
        return llm

    monkeypatch.setattr("llama3jit.api.load", load)
    llm.opened = opened
    return llm


def test_three_kinds_of_requests(use, tmp_path, capsys):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [request("a", "one"), "", request("b", "two", "/v1/completions")]
    file.write_text("\n".join([*lines, request("ç", "three", "/v1/embeddings")]))
    assert run(["batch", str(file), "m", "-o", str(out), "--parallel", "3"]) == 0
    found = {one["custom_id"]: one for one in results(out)}
    assert {name: one["response"]["body"]["object"] for name, one in found.items()} == {
        "a": "chat.completion",
        "b": "text_completion",
        "ç": "list",
    }
    assert found["a"]["response"]["status_code"] == 200
    assert found["b"]["response"]["body"]["asked"] == "two"
    ((model, given),) = use.opened
    assert (model, given["max_sequences"]) == ("m", 3)
    assert capsys.readouterr() == ("", "3 done\n")


BAD = {
    "{broken": "line 1 is no JSON",
    "[1]": "line 1 is no JSON object",
    "[" * 100_000: "line 1 is no JSON",
    request(""): "custom_id is ''; expected a string",
    request(7): "custom_id is 7; expected",
    request("x", method="GET"): "method is 'GET'; expected POST",
    request("x", url="/v1/images"): "url is '/v1/images'; expected /v1/chat/completions, ",
    request("x", body=[1]): r"body is [1]; expected an object",
    request("x", body={"messages": [], "stream": True}): "stream is asked for",
    request("x", body={"messages": [{"content": "x"}], "nonsense": 1}): "'nonsense'",
    request("x", body={}): "'messages'",
    request("x", "too long"): "the context holds 8",
    request("x", "nan"): "not JSON compliant",
}


@pytest.mark.parametrize("line", BAD, ids=range(len(BAD)))
def test_a_bad_line_gets_an_error_and_the_rest_goes_on(line, use, tmp_path, capsys):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text(f"{line}\n{request('good')}\n")
    assert run(["batch", str(file), "-o", str(out)]) == 1
    found = results(out)
    (bad,) = [one for one in found if one["error"]]
    assert BAD[line] in bad["error"]["message"]
    code = "context_overflow" if "context" in BAD[line] else "invalid_request"
    assert bad["error"]["code"] == code
    assert [one["custom_id"] for one in found if one["response"]] == ["good"]
    assert capsys.readouterr().err == "2 done, 1 of them with an error\n"
    # Neither is done again.
    use.calls.clear()
    assert run(["batch", str(file), "-o", str(out)]) == 0
    assert (results(out), use.calls) == (found, [])
    assert capsys.readouterr().err == "0 done, 2 were there\n"


def test_a_custom_id_counts_once(use, tmp_path):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text("\n".join([request("a", "one"), request("a", "two"), request("b", "three")]))
    assert run(["batch", str(file), "-o", str(out)]) == 1
    assert sorted(use.calls) == ["one", "three"]
    (error,) = [one["error"] for one in results(out) if one["error"]]
    assert error["message"] == "line 2: the custom_id is that of line 1 already"
    # Where the error came first and the run then ended, the first line is still to do.
    errors = [line for line in out.read_text().splitlines() if '"duplicate' in line]
    out.write_text("\n".join(errors) + "\n")
    left = left_to_do(read_tasks(file.read_bytes().split(b"\n")), mend(out))
    assert [task.custom_id for task in left] == ["a", "b"]


def test_it_goes_on_where_it_ended(use, tmp_path, capsys):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text("\n".join(request(str(i), f"text {i}") for i in range(9)))
    assert run(["batch", str(file), "-o", str(out)]) == 0
    whole = out.read_bytes().splitlines(keepends=True)
    capsys.readouterr()
    for cut in (1, 20, len(whole[6]) - 1):
        use.calls.clear()
        out.write_bytes(b"".join(whole[:6]) + whole[6][:cut])
        # All but its newline is a whole line.
        kept = 7 if cut == len(whole[6]) - 1 else 6
        assert run(["batch", str(file), "-o", str(out)]) == 0
        assert len(use.calls) == 9 - kept
        assert sorted(one["custom_id"] for one in results(out)) == [str(i) for i in range(9)]
        assert f"{kept} were there" in capsys.readouterr().err


def test_another_file_is_left_alone(use, tmp_path, capsys):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text(request("a"))
    for text in ("my notes\n", '{"a": 1}\n', "notes\nmore"):
        out.write_text(text)
        assert run(["batch", str(file), "-o", str(out)]) == 2
        assert "line 1 is not the result of a batch" in capsys.readouterr().err
        assert out.read_text() == text
    assert run(["batch", str(file), "-o", str(file)]) == 2
    assert "is the file of requests" in capsys.readouterr().err
    assert run(["batch", str(file)]) == 2
    assert "give -o FILE" in capsys.readouterr().err
    assert run(["batch", str(tmp_path / "none"), "-o", str(out)]) == 2
    assert use.opened == []


def test_requests_share_the_model(tmp_path):
    llm, out = Fake(pause=0.05), tmp_path / "out"
    tasks = read_tasks([request(str(i)).encode() for i in range(12)])
    totals = Totals(len(tasks))
    seen = []
    run_batch(llm, tasks, out, totals, at_once=4, report=lambda: seen.append(totals.done))
    assert llm.most == 4
    assert seen == list(range(1, 13))
    assert (totals.done, totals.failed, totals.tokens) == (12, 0, 60)


def test_an_error_of_the_device_ends_the_run(tmp_path):
    llm, out = Fake(pause=0.2), tmp_path / "out"
    lines = [request("a"), request("b", "no device"), *(request(str(i)) for i in range(50))]
    began = time.perf_counter()
    with pytest.raises(DeviceError, match="the device is gone"):
        run_batch(llm, read_tasks([r.encode() for r in lines]), out, Totals(52), at_once=2)
    assert time.perf_counter() - began < 2
    assert results(out) == []
    assert len(left_to_do(read_tasks([r.encode() for r in lines]), mend(out))) == 52


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_ends_the_run():
    with pytest.raises(OSError, match="No space left"):
        run_batch(
            Fake(), read_tasks([request("a").encode()]), Path("/dev/full"), Totals(1), at_once=2
        )


def test_mend_refuses_what_it_cannot_read(tmp_path):
    with pytest.raises(InvalidArgumentError, match="cannot be read: Is a directory"):
        mend(tmp_path)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_is_done_stays_when_the_run_is_ended(kind, tmp_path):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text("\n".join(request(str(i)) for i in range(400)))
    code = f"""
        import sys
        sys.path.insert(0, {str(ROOT / "tests")!r})
        from test_batch_file import Fake
        import llama3jit.api
        from llama3jit.cli import main
        llama3jit.api.load = lambda *a, **k: Fake(pause=0.02)
        sys.argv = ["llama3jit", "batch", {str(file)!r}, "-o", {str(out)!r}, "--parallel", "4"]
        main()
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    try:
        for _ in range(1000):
            if out.exists() and out.read_bytes().count(b"\n") >= 10:
                break
            time.sleep(0.02)
        process.send_signal(kind)
        _, err = process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == (-kind if kind == signal.SIGKILL else 128 + kind)
    assert err in (b"", b"llama3jit: interrupted\n")
    before = len(mend(out)) // 2
    assert 10 <= before < 400
    left = left_to_do(read_tasks(file.read_bytes().split(b"\n")), mend(out))
    assert len(left) == 400 - before
