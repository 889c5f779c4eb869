"""generate, score and the app itself, on a scripted model."""

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from scripted import ASSISTANT, BOS, VOCAB, noise, replying, scripted_llama

from llama3jit.cli.app import COMMANDS, run
from llama3jit.engine.sequence import SamplingParams
from llama3jit.errors import DeviceError

TESTS = Path(__file__).parent.parent


@pytest.fixture
def use(monkeypatch):
    """Make the commands open a scripted model; gives what `load` was called with."""
    calls = []

    def install(script, before=None):
        def load(model, **options):
            calls.append((model, options))
            return scripted_llama(script, before=before).llama

        monkeypatch.setattr("llama3jit.api.load", load)
        return calls

    return install


def pipe_in(monkeypatch, data):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


def seen_prompt(history):
    """The prompt of a turn, written back."""
    return replying(f"<{bytes(t for t in history[: history.index(ASSISTANT)] if t < 256)!r}>")(
        history
    )


def test_the_text_is_all_that_stdout_gets(use, capsys):
    calls = use(replying("One. Two."))
    assert run(["generate", "m", "-p", "hi"]) == 0
    assert capsys.readouterr() == ("One. Two.\n", "")
    model, options = calls[0]
    assert model == "m"
    options.pop("progress")
    assert options == {
        "device": "auto",
        "n_ctx": None,
        "threads": None,
        "kv_dtype": "f16",
        "precision": "fast",
    }


def test_json_has_the_keys_and_the_text(use, capsys):
    use(replying("Hé"))
    assert run(["generate", "m", "-p", "hi", "--json", "--seed", "7"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["text"] == "Hé"
    assert result["tokens"] == list("Hé".encode())
    assert result["finish_reason"] == "stop"
    assert (result["prompt_tokens"], result["completion_tokens"], result["seed"]) == (5, 3, 7)
    assert {"load_s", "ttft_s", "decode_tokens_per_s"} <= set(result["stats"])


def test_prompts_from_a_file_and_from_stdin(use, capsys, tmp_path, monkeypatch):
    use(seen_prompt)
    (tmp_path / "prompt.txt").write_text("from a file\n")
    assert run(["generate", "m", "-f", str(tmp_path / "prompt.txt")]) == 0
    assert capsys.readouterr().out == "<b'from a file\\n'>\n"
    for arguments in (["generate", "m"], ["generate", "m", "-f", "-"]):
        pipe_in(monkeypatch, b"piped in")
        assert run(arguments) == 0
        assert capsys.readouterr().out == "<b'piped in'>\n"


def test_raw_continues_the_text_and_options_reach_the_sampler(use, capsys):
    prompts = []

    def script(history):
        prompts.append(history)
        return noise(history)

    use(script)
    arguments = "--raw -n 5 --temperature 2 --top-k 3 --top-p 0.9 --min-p 0.01 --seed 5"
    outputs = []
    for _ in range(2):
        assert run(["generate", "m", "-p", "ab", *arguments.split()]) == 0
        outputs.append(capsys.readouterr().out)
    assert prompts[0] == [BOS, 97, 98]
    assert outputs[0] == outputs[1]


def test_stop_strings(use, capsys):
    use(replying("abcdef"))
    assert run(["generate", "m", "-p", "x", "--stop", "zz", "--stop", "d"]) == 0
    assert capsys.readouterr().out == "abc\n"


def test_a_stop_string_of_a_variable_is_one(use, capsys, monkeypatch):
    use(replying("a b ca b"))
    for variable, reply in (("b c", "a "), ("b\n", "a b ca b"), ("  ", "a b ca b"), ("c", "a b ")):
        monkeypatch.setenv("LLAMA3JIT_STOP", variable)
        assert run(["generate", "m", "-p", "x"]) == 0
        assert capsys.readouterr().out == f"{reply}\n"
    assert run(["generate", "m", "-p", "x", "--stop", "a", "--stop", "b c"]) == 0
    assert capsys.readouterr().out == "\n"


@pytest.mark.parametrize("arguments", [["generate", "m"], ["generate", "m", "-f", "-"]])
def test_an_empty_prompt_is_none(arguments, use, capsys, monkeypatch, tmp_path):
    calls = use(replying("x"))
    for data in (b"", b"\n", b" \t\n"):
        pipe_in(monkeypatch, data)
        assert run(arguments) == 2
        assert capsys.readouterr().err.startswith("llama3jit: no prompt: stdin is empty; give -p")
    (tmp_path / "empty").touch()
    assert run(["generate", "m", "-f", str(tmp_path / "empty")]) == 2
    assert "empty is empty" in capsys.readouterr().err
    assert calls == []
    use(noise)
    pipe_in(monkeypatch, b"")
    assert run(["generate", "m", "--raw", "-n", "1"]) == 0, "BOS alone can be continued"


def test_variables_stand_for_flags(use, capsys, monkeypatch):
    calls = use(replying("A long reply"))
    monkeypatch.setenv("LLAMA3JIT_MODEL", "from-variable")
    monkeypatch.setenv("LLAMA3JIT_MAX_TOKENS", "6")
    monkeypatch.setenv("LLAMA3JIT_THREADS", "3")
    assert run(["generate", "-p", "hi"]) == 0
    assert capsys.readouterr().out == "A long\n"
    assert calls[0][0] == "from-variable"
    assert calls[0][1]["threads"] == 3


def test_the_default_model(use, capsys):
    from llama3jit.files.catalogue import DEFAULT_MODEL

    calls = use(replying("x"))
    assert run(["generate", "-p", "hi"]) == 0
    assert calls[0][0] == DEFAULT_MODEL


def test_help_names_the_defaults_of_the_library(capsys):
    assert run(["generate", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    defaults = SamplingParams()
    for name in ("temperature", "top_k", "top_p", "min_p"):
        flag = "--" + name.replace("_", "-")
        about = text[text.index(flag) : text.index(f"LLAMA3JIT_{name.upper()}")]
        assert f"[default: {getattr(defaults, name)}]" in about


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_flag_has_a_variable(command, capsys):
    assert run([command, "--help"]) == 0
    out = capsys.readouterr().out
    flags = [line.split()[0] for line in out.splitlines() if line.strip().startswith("-")]
    assert out.count("[env var:") + out.count("LLAMA3JIT_") >= len(flags) - 1
    assert flags


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nonsense"], 2, "No such command"),
        (["generate", "m", "-p", "x", "--frobnicate"], 2, "frobnicate"),
        (["generate", "m", "-p", "x", "--threads", "0"], 2, "threads"),
        (["generate", "m", "-p", "x", "--temperature", "-1"], 2, "'--temperature'"),
        (["generate", "m", "-p", "x", "--temperature", "inf"], 2, "temperature is inf: expected"),
        (["generate", "m", "-p", "x", "-n", "0"], 2, "'--max-tokens'"),
        (["generate", "m", "-p", "x", "--top-p", "1.5"], 2, "'--top-p'"),
        (["generate", "m", "-p", "x", "--seed", "18446744073709551616"], 2, "'--seed'"),
        (["plan", "m", "--kv-dtype", "q3"], 2, "kv_dtype is 'q3'; expected f16, f32, q8_0"),
        (["generate", "m", "-f", "/dev/zero"], 2, "/dev/zero is larger than the 256 MiB"),
        (["generate", "m", "-p", "x", "-f", "y"], 2, "-p and -f"),
        (["generate", "m", "-f", "/nonexistent/prompt"], 2, "/nonexistent/prompt cannot be read"),
        (["generate", "m", "-p", "x" * 200], 1, "203 tokens"),
        (["score", "m", "/nonexistent/text"], 2, "cannot be read"),
        (["score"], 2, "Missing argument"),
    ],
)
def test_errors_are_a_line_on_stderr(use, capsys, arguments, status, message):
    use(noise)
    assert run(arguments) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.startswith("llama3jit: ")
    assert err.count("\n") == 1


def test_failures_in_the_middle_and_mistakes_of_ours(use, capsys, monkeypatch):
    def before(batch):
        raise DeviceError("lost\nthe device")

    use(noise, before)
    assert run(["generate", "m", "-p", "x"]) == 1
    assert capsys.readouterr().err == "llama3jit: lost the device\n"
    monkeypatch.setattr("llama3jit.api.load", lambda *a, **k: 1 / 0)
    assert run(["generate", "m", "-p", "x"]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    monkeypatch.setenv("LLAMA3JIT_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        run(["generate", "m", "-p", "x"])


def test_a_prompt_that_is_not_utf8_is_refused(use, capsys, monkeypatch):
    use(noise)
    pipe_in(monkeypatch, b"ab\xff")
    assert run(["generate", "m"]) == 2
    assert "byte 2 is 0xff" in capsys.readouterr().err


def test_values_out_of_range_are_refused_before_the_model_is_opened(use, capsys):
    calls = use(noise)
    for option in ("--temperature=-1", "--top-k=-1", "--min-p=2", "--seed=-1", "-n=0"):
        assert run(["generate", "m", "-p", "x", option]) == 2
    assert calls == []


def test_a_message_cannot_steer_the_terminal(use, capsys):
    use(noise, lambda batch: exec("raise DeviceError('a\\x1b[2J\\nb\\u202e')"))
    assert run(["generate", "m", "-p", "x"]) == 1
    assert capsys.readouterr().err == "llama3jit: a\\x1b[2J b\\u202e\n"


def test_an_infinite_perplexity_is_json(use, capsys, tmp_path):
    logits = np.full(VOCAB, -1e30, np.float32)
    logits[0] = 1e30
    use(lambda history: logits)
    (tmp_path / "text").write_text("xyz")
    assert run(["score", "m", str(tmp_path / "text"), "--json"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out, parse_constant=pytest.fail)["perplexity"] is None


@pytest.mark.parametrize(
    ("redirection", "out", "err"),
    [
        (">&-", "", ""),
        ("2>&-", "A\n", ""),
        ("<&-", "", "llama3jit: no prompt: stdin is empty; give -p TEXT or -f FILE\n"),
        ("<&- >&- 2>&-", "", ""),
        ("<&- >&- 2>&- -p x", "", ""),
        (">/dev/full", "", "llama3jit: [Errno 28] No space left on device\n"),
    ],
)
def test_streams_that_are_closed_or_full(redirection, out, err):
    redirection, given, prompt = redirection.partition(" -p ")
    no_prompt = "<" in redirection and not given
    done = run_in_shell(
        ["generate", "m", *([] if no_prompt else ["-p", prompt or "x"])], redirection
    )
    assert (done.stdout, done.stderr) == (out, err)
    assert done.returncode == (2 if no_prompt else 1 if err else 0)


def test_an_error_with_stderr_closed_stays_out_of_stdout():
    for redirection in ("2>&-", "2>/dev/full"):
        done = run_in_shell(["nonsense"], redirection)
        assert (done.stdout, done.returncode) == ("", 2)


def test_a_warning_is_a_line():
    done = run_in_shell(
        ["generate", "m", "-p", "x"], "", "__import__('warnings').warn('two\\nlines')"
    )
    assert (done.stdout, done.stderr) == ("A\n", "llama3jit: warning: two lines\n")


def test_score_prints_what_the_library_says(use, capsys, tmp_path):
    use(lambda history: np.zeros(VOCAB, np.float32))
    (tmp_path / "text").write_text("x" * 300)
    assert run(["score", "m", str(tmp_path / "text"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert list(result) == ["tokens", "nll", "perplexity"]
    assert result["tokens"] == 300
    assert result["perplexity"] == pytest.approx(VOCAB)
    assert run(["score", "m", str(tmp_path / "text")]) == 0
    assert (
        capsys.readouterr().out == f"tokens 300  nll {300 * np.log(260):.3f}  perplexity 260.0000\n"
    )


def test_version_and_no_arguments(capsys):
    from llama3jit import __version__

    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"llama3jit {__version__}\n"
    run([])
    out, err = capsys.readouterr()
    assert all(command in out + err for command in COMMANDS)


def start(arguments, script="noise", before="None", load="None", environment=(), **streams):
    """The command line in a process of its own, on a scripted model; `load` runs while it opens."""
    code = f"""
        import sys, time
        from scripted import *
        import llama3jit.api
        from llama3jit.cli import main
        both = scripted_llama({script}, before={before})
        llama3jit.api.load = lambda *a, **k: ({load}, both.llama)[1]
        sys.argv = ["llama3jit", *{arguments!r}]
        main()
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={
            **os.environ,
            "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
            **dict(environment),
        },
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


def run_in_shell(arguments, redirection, before="None"):
    code = f"""
        import sys
        from scripted import *
        import llama3jit.api
        from llama3jit.cli import main
        def load(*arguments, **options):
            {before}
            return scripted_llama(replying("A")).llama
        llama3jit.api.load = load
        sys.argv = ["llama3jit", *{arguments!r}]
        main()
    """
    command = f'exec "$0" -c "$1" {redirection}'
    return subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"},
        capture_output=True,
        text=True,
        check=False,
    )


LINES = "one\n\ntwo \r\n  \nthree"


def test_a_prompt_a_line(use, capsys, monkeypatch, tmp_path):
    use(seen_prompt)
    (tmp_path / "prompts").write_text(LINES)
    pipe_in(monkeypatch, LINES.encode())
    for source in ([], ["-f", str(tmp_path / "prompts")]):
        assert run(["generate", "m", "--lines", *source]) == 0
        out = capsys.readouterr().out.replace("two '", "two'")
        assert out == "<b'one'>\n<b'two'>\n<b'three'>\n"
    pipe_in(monkeypatch, LINES.encode())
    assert run(["generate", "m", "--lines", "--json", "--system", "S"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["text"] for one in found] == ["<b'Sone'>", "<b'Stwo '>", "<b'Sthree'>"]


def test_many_lines_share_the_batch_and_keep_their_order(use, capsys, monkeypatch):
    together = []
    use(seen_prompt, lambda batch: together.append(len(batch.context_lens)))
    prompts = [f"{'x' * (37 * i % 23)}{i}" for i in range(40)]
    pipe_in(monkeypatch, "\n".join(prompts).encode())
    assert run(["generate", "m", "--lines"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"<b'{prompt}'>" for prompt in prompts]
    assert max(together) > 2


def test_a_line_that_fails_and_the_rest(use, capsys, monkeypatch):
    use(seen_prompt)
    for flags in ([], ["--json"]):
        pipe_in(monkeypatch, b"one\n" + b"x" * 200 + b"\nthree\n")
        assert run(["generate", "m", "--lines", *flags]) == 1
        out, err = capsys.readouterr()
        assert err.startswith("llama3jit: prompt 2: ")
        assert err.count("\n") == 1
        lines = out.splitlines()
        assert len(lines) == 3
        if flags:
            assert "203 tokens" in json.loads(lines[1])["error"]
        else:
            assert lines == ["<b'one'>", "", "<b'three'>"]


@pytest.mark.parametrize(
    ("arguments", "message"), [(["-p", "x"], "-p is one prompt"), (["-f", "/nowhere"], "cannot be")]
)
def test_lines_that_cannot_be(arguments, message, use, capsys):
    use(noise)
    assert run(["generate", "m", "--lines", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_lines_of_no_text_are_refused_where_they_come(use, capsys, monkeypatch):
    use(seen_prompt)
    pipe_in(monkeypatch, b"one\ntw\xff\n")
    assert run(["generate", "m", "--lines"]) == 2
    out, err = capsys.readouterr()
    assert out in ("", "<b'one'>\n")
    assert "line 2 of stdin is not UTF-8" in err


def test_an_answer_does_not_wait_for_the_next_line_and_ctrl_c_ends_it():
    process = start(["generate", "m", "--lines"], "replying('ok')", stdin=subprocess.PIPE)
    try:
        for _ in range(2):
            process.stdin.write(b"hello\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"ok\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    assert (err, process.returncode) == (b"llama3jit: interrupted\n", 130)


def test_a_reader_of_lines_that_goes_away():
    process = start(["generate", "m", "--lines"], "replying('ok')", stdin=subprocess.PIPE)
    try:
        process.stdin.write(b"hello\n" * 3)
        process.stdin.flush()
        assert process.stdout.readline() == b"ok\n"
        process.stdout.close()
        process.stdin.write(b"hello\n" * 3)
        process.stdin.close()
        err = process.stderr.read()
        process.wait(timeout=10)
    finally:
        process.kill()
        process.wait()
    process.stderr.close()
    assert (err, process.returncode) == (b"", 1)


def test_ctrl_c_while_loading_leaves_at_once():
    code = """
        import sys, time
        import llama3jit.api
        from llama3jit.cli import main
        def load(*arguments, **options):
            print("loading", flush=True)
            time.sleep(20)
        llama3jit.api.load = load
        sys.argv = ["llama3jit", "generate", "m", "-p", "x"]
        main()
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=TESTS.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=5)
    finally:
        process.kill()
        process.wait()
    assert (err, process.returncode) == (b"llama3jit: interrupted\n", 130)


def test_interrupts_are_left_as_they_were_found(use):
    use(replying("x"))
    for handler in (signal.default_int_handler, signal.SIG_IGN):
        before = signal.signal(signal.SIGINT, handler)
        try:
            assert run(["generate", "m", "-p", "hi"]) == 0
            assert signal.getsignal(signal.SIGINT) is handler
        finally:
            signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("before", ["lambda b: time.sleep(0.01)", "lambda b: time.sleep(0.2)"])
def test_ctrl_c_ends_generate_with_130(before):
    process = start(["generate", "m", "-p", "x"], "lambda h: peak(65)", before)
    try:
        assert process.stdout.read(1) == b"A"
        process.send_signal(signal.SIGINT)
        began = time.perf_counter()
        out, err = process.communicate(timeout=10)
    finally:
        process.kill()
        process.wait()
    assert time.perf_counter() - began < 1.5
    assert err == b"llama3jit: interrupted\n"
    assert process.returncode == 130
    assert set(out) <= set(b"A\n")


def test_a_reader_that_goes_away_is_met_with_silence():
    process = start(["generate", "m", "-p", "x"], "lambda h: peak(65)", "lambda b: time.sleep(.01)")
    try:
        assert process.stdout.read(3) == b"AAA"
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=10)
    finally:
        process.kill()
        process.wait()
    process.stderr.close()
    assert err == b""
    assert process.returncode == 1
