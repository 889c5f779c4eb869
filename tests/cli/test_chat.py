"""chat on a scripted model, piped and without any input; for terminals see test_repl_terminal."""

import io

import pytest
from scripted import ASSISTANT, replying, scripted_llama

from llama3jit.cli.app import run
from llama3jit.cli.chat import BUILT_IN_QUESTION


def echo(history):
    """Replies with the number of turns and the last message."""
    begin = max(i for i, t in enumerate(history[:-1]) if t == 258)
    text = bytes(t for t in history[begin : history.index(ASSISTANT, begin)] if t < 256).decode()
    return replying(f"{history.count(258)} {text}")(history)


@pytest.fixture
def talk(monkeypatch, capsys):
    """Run chat with lines piped in; gives its status, stdout and stderr."""

    def run_chat(data, *arguments, script=echo):
        monkeypatch.setattr("llama3jit.api.load", lambda *a, **k: scripted_llama(script).llama)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        status = run(["chat", "m", *arguments])
        return status, *capsys.readouterr()

    return run_chat


def test_each_piped_line_is_a_turn(talk):
    assert talk(b"one\n\n  two\nthree") == (0, "1 one\n2 two\n3 three\n", "")


def test_no_input_gets_the_built_in_question(talk):
    status, out, err = talk(b"")
    assert (status, out) == (0, f"1 {BUILT_IN_QUESTION}\n")
    assert BUILT_IN_QUESTION in err


def test_bytes_that_are_no_utf_8_do_not_end_the_talk(talk):
    def script(history):
        return replying("got it" if 0xFF in history else "?")(history)

    assert talk(b"a\xffb\nc\n", script=script)[:2] == (0, "got it\ngot it\n")


def test_commands_are_not_sent(talk):
    status, out, err = talk(b"/help\none\n/nope now\n/clear\ntwo\n//slash\n/bye\nthree\n")
    assert (status, out) == (0, "1 one\n1 two\n2 /slash\n")
    assert "/nope is no command" in err
    assert "Ctrl-C stops a reply" in err


def test_system_prompt_stays_through_clear(talk):
    def script(history):
        return replying(f"{len(history) - history[::-1].index(ASSISTANT)}")(history)

    _, with_system, _ = talk(b"ab\n/clear\nab\n", "--system", "xyz", script=script)
    _, without, _ = talk(b"ab\n", script=script)
    assert with_system.split() == [str(int(without) + 4)] * 2


def test_a_turn_that_does_not_fit_is_refused_and_the_talk_goes_on(talk):
    status, out, err = talk(b"one\n" + b"x" * 200 + b"\ntwo\n")
    assert (status, out) == (1, "1 one\n2 two\n")
    assert "holds 128 tokens" in err
    assert "/clear forgets the conversation" in err


def test_a_full_context_is_said(talk):
    status, out, err = talk(b"one\n", script=replying("y" * 200))
    assert status == 0
    assert out == "y" * 122 + "\n"
    assert "context of 128 tokens is full" in err


def test_verbose_reports_speeds_on_stderr(talk):
    status, out, err = talk(b"one\n", "-v")
    assert (status, out) == (0, "1 one\n")
    assert "first token" in err
    assert "tok/s" in err
