"""chat at a pseudo-terminal, on a scripted model: every command, paste, Ctrl-C in each phase."""

import json
import os
import re
import signal
import stat

import pytest

pytest.importorskip("pty")

from terminal import ESCAPES, Terminal

# Replies with the number of turns and the message, without line breaks.
ECHO = (
    "lambda h: (lambda at: replying(str(h.count(258)) + ':' + "
    "bytes(t for t in h[at:h.index(259, at)] if t < 256).decode().replace(chr(10), '|') + '.')(h))"
    "(max(i for i, t in enumerate(h) if t == 258))"
)
SLOW = "lambda b: time.sleep(0.02)"


@pytest.fixture
def terminal(tmp_path):
    """Open a terminal with chat in it; its history file is a fresh one."""
    opened = []

    def build(script=ECHO, *more, **options):
        options.setdefault("LLAMA3JIT_HISTORY", str(tmp_path / "state" / "history"))
        opened.append(Terminal(script, *more, **options))
        return opened[-1]

    yield build
    for one in opened:
        one.end()


def test_through_every_command(terminal, tmp_path):
    from llama3jit.cli.repl.commands import ALIASES, COMMANDS

    file = tmp_path / "talk.json"
    (tmp_path / "editor").write_text('#!/bin/sh\nprintf "from the editor\\n" >"$1"\n')
    (tmp_path / "editor").chmod(0o755)
    window = terminal(EDITOR=str(tmp_path / "editor"), VISUAL="")
    window.prompt()
    steps = [
        ("one", "1:one."),
        ("/help", "/regen"),
        ("/help set", "/set"),
        ("/nope", "/nope is no command"),
        ("//slash", "2:/slash."),
        ("/regen", "2:/slash."),
        ("/undo", "1 turn taken back; 1 turn left"),
        ("/history", "1:one."),
        ("/stats", "tok/s"),
        ("/set", "max_tokens temperature"),
        ("/set parameter temperature 0.5", "temperature is 0.5"),
        ("/set parameter temprature 0.5", "did you mean 'temperature'"),
        ("/set parameter top_p 7", "top_p is 7"),
        ("/show parameters", "temperature 0.5"),
        ("/set verbose", "follow each reply"),
        ("two", "first token"),
        ("/set quiet", "no times"),
        ("/system be short", "is set"),
        ("/system", "be short"),
        ("/show system", "be short"),
        ("/show model", "vocabulary"),
        ("/show template", "{{ messages }}"),
        ("/show context", "of 128 tokens"),
        ("/template", "<system>be short<user>one<assistant>1:one."),
        ("/tokens Hé", '195  "\ufffd"'),
        ("/probs 2 hi", '%'),
        ("/probs 3", '257'),
        (f"/save {file}", "saved 2 turns"),
        ("/clear", "forgotten"),
        ("three", "2:three."),
        (f"/load {file}", "loaded 2 turns"),
        ("four", "4:four."),
        ("/set nohistory", "not kept"),
    ]  # fmt: skip
    for line, shown in steps:
        assert shown in window.run(line).split("\n", 1)[1], line
    window.run("/edit")  # what the editor left stands there
    assert "5:from the editor." in window.run("")
    assert {line.split()[0] for line, _ in steps} | {"/edit", "/bye"} >= set(COMMANDS)
    assert set(ALIASES.values()) <= set(COMMANDS)
    window.type("/bye\r")
    assert window.status() == 0
    assert window.is_as_first()
    saved = json.loads(file.read_text())
    assert saved["system"] == "be short"
    assert saved["parameters"]["temperature"] == 0.5
    assert [m["content"] for m in saved["messages"]] == ["one", "1:one.", "two", "2:two."]


def test_ctrl_x_ctrl_e_opens_the_editor(terminal, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nprintf " and\\nmore\\n" >>"$1"\n')
    editor.chmod(0o755)
    window = terminal(VISUAL=str(editor))
    window.prompt()
    window.type("some\x18\x05")
    window.expect("more")
    assert "1:some and|more." in window.run("")
    window.leave()


def test_an_editor_that_fails_is_said_and_changes_nothing(terminal):
    window = terminal(VISUAL="false")
    window.prompt()
    assert "ended with status 1" in window.run("/edit kept")
    window.expect("kept")
    assert "1:kept." in window.run("")
    window.leave()


def test_what_is_pasted_is_one_message(terminal):
    window = terminal()
    window.prompt()
    window.paste("a\n\nb\\\nc\n")
    assert "1:a||b\\|c." in window.run("")
    window.type('"""d\r')
    window.type("e\r")
    assert "2:d|e." in window.run('f"""') or "2:d|e|f." in window.all
    window.type("g\\\r")
    assert "3:g|h." in window.run("h")
    assert window.leave() == 0
    assert window.is_as_first()


def test_ctrl_c_while_the_model_loads_ends_at_once(terminal):
    window = terminal(load="(print('loading', flush=True), time.sleep(600))")
    window.expect("loading")
    window.interrupt()
    assert window.status() == 130
    assert "interrupted" in window.all
    assert "Traceback" not in window.all


def test_ctrl_c_in_the_prompt_of_the_model_drops_the_turn(terminal):
    # The pass over the prompt that holds "!" waits until it is cancelled.
    before = (
        "lambda b: 33 in b.tokens.tolist() and "
        "(print('prefill', flush=True), both.runner.cancelled.wait(60))"
    )
    window = terminal(ECHO, before)
    window.prompt()
    window.type("wait!\r")
    window.expect("prefill")
    window.interrupt()
    window.expect("(stopped before the reply")
    window.prompt()
    window.type("\x15")
    assert "1:more." in window.run("more")
    assert window.leave() == 0


def test_ctrl_c_in_a_reply_keeps_what_there_is(terminal):
    # Replies A for ever to the first turn, and to the second with whether it finds some A.
    script = (
        "lambda h: peak(65) if h.count(258) == 1 else "
        "replying('kept ' + str(h[:h[:-1].index(259) + 1 + h.count(65)].count(65) > 2))(h)"
    )
    window = terminal(script, SLOW)
    window.prompt()
    window.type("go\r")
    window.expect("AAAA")
    window.interrupt()
    window.expect("(stopped)")
    window.prompt()
    assert "kept True" in window.run("and now")
    assert window.leave() == 0


def test_ctrl_c_at_the_prompt_empties_it_and_then_says_how_to_leave(terminal):
    window = terminal()
    window.prompt()
    window.type("unsent words")
    window.interrupt()
    window.prompt()
    window.interrupt()
    window.expect("Ctrl-D or /bye leaves")
    window.prompt()
    window.process.send_signal(signal.SIGINT)
    window.expect("Ctrl-D or /bye leaves")
    window.prompt()
    assert "1:sent." in window.run("sent")
    assert window.leave() == 0


def test_ending_by_a_signal_leaves_the_terminal_as_it_was(terminal):
    window = terminal()
    window.prompt()
    window.process.send_signal(signal.SIGTERM)
    assert window.status() == 128 + signal.SIGTERM
    assert window.is_as_first()
    assert "Traceback" not in window.all


def test_a_turn_that_is_too_long_stands_there_again(terminal):
    window = terminal("replying('ok')")
    window.prompt()
    window.type("y" * 150 + "\r")
    window.expect("holds 128 tokens")
    window.prompt()
    window.expect("y" * 20)
    window.type("\x15")  # Ctrl-U empties the line
    assert "ok" in window.run("short")
    assert window.leave() == 0


def test_turns_that_are_dropped_are_said_and_kept_in_the_history(terminal):
    window = terminal("replying('ok')")
    window.prompt()
    for letter in "abc":
        window.run(letter * 30)
    assert "oldest turn" in window.run("d" * 30)
    assert "a" * 30 in window.run("/history")
    window.run("/set on_overflow error")
    window.run("/set max_tokens 40")
    for letter in "ef":
        told = window.run(letter * 30)
    window.type("\x15")
    assert "/undo takes the last turn back" in told
    assert "/clear" in told
    assert window.leave() == 0


def test_history_is_private_and_keeps_entries_whole(terminal, tmp_path):
    path = tmp_path / "state" / "history"
    window = terminal()
    window.prompt()
    window.paste("first\nsecond")
    window.run("")
    window.run("/set nohistory")
    window.run("secret")
    window.leave()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "secret" not in path.read_text()
    window = terminal()
    window.prompt()
    window.type("\x1b[A")  # up: /set nohistory was typed before it held
    window.type("\x1b[A" * 2 + "\r")
    window.expect("1:first|second.")
    window.prompt()
    assert window.leave() == 0


def test_tab_completes_commands_parameters_and_paths(terminal, tmp_path):
    window = terminal(columns=300)
    window.prompt()
    window.type("/hist\t")
    window.expect("ory")
    assert "nothing has been said" in window.run("")
    window.type("/set par\t")
    window.expect("ameter")
    window.type(" temper\t")
    window.expect("ature")
    assert "temperature is 0.25" in window.run(" 0.25")
    (tmp_path / "only.json").write_text("nonsense")
    window.type(f"/load {tmp_path}/onl\t")
    window.expect("y.json")
    assert "is not JSON" in window.run("")
    assert window.leave() == 0


def test_the_meter_is_below_the_prompt(terminal):
    window = terminal()
    window.prompt()
    window.expect("context 0 of 128 tokens (0 %)")
    window.run("one")
    window.expect("context 12 of 128 tokens (9 %)")
    assert window.leave() == 0


def test_a_dumb_terminal_gets_no_escapes(terminal):
    window = terminal(term="dumb")
    window.expect(">>> ")
    window.type("one\r")
    window.expect("1:one.")
    window.expect(">>> ")
    window.type('"""two\r')
    window.expect("... ")
    window.type('three"""\r')
    window.expect("2:two|three.")
    window.expect(">>> ")
    window.type("four\\\r")
    window.expect("... ")
    window.type("five\r")
    window.expect("3:four|five.")
    window.expect(">>> ")
    window.type("/bye\r")
    assert window.status() == 0
    assert "\x1b" not in window.all


def test_no_colour_where_none_is_wanted(terminal):
    window = terminal(NO_COLOR="1")
    window.prompt()
    window.run("one")
    window.leave()
    colours = re.findall(r"\x1b\[[0-9;]*m", window.all)
    assert not [c for c in colours if re.search(r"[\[;](3|4|9|10)\d(;|m)", c)]


def test_a_model_cannot_steer_the_terminal(terminal):
    window = terminal("replying('\\x1b]0;owned\\x07\\x1b[2J' + chr(0x9b) + '31m\\u202e')")
    window.prompt()
    shown = window.run("go")
    assert r"\x1b]0;owned\x07\x1b[2J\x9b31m\u202e" in shown
    assert "\x1b]0;" not in window.all
    assert "\x1b[2J" not in window.all
    window.leave()


def test_words_are_not_cut_at_the_edge(terminal):
    window = terminal("replying('the quick brown fox jumps over the lazy dog')", columns=20)
    window.prompt()
    shown = on_screen(window.run("go"))
    for line in ("the quick brown fox", "jumps over the lazy", "dog"):
        assert line in shown
    window.leave()


def on_screen(text):
    """Lines as they look after backspaces."""
    lines = []
    for line in ESCAPES.sub("", text).split("\n"):
        cells, at = [], 0
        for letter in line:
            if letter == "\b":
                at -= 1
                continue
            cells[at : at + 1] = [letter]
            at += 1
        lines.append("".join(cells).rstrip())
    return lines


def test_output_that_goes_to_a_file_is_only_the_reply(tmp_path, terminal):
    path = tmp_path / "out"
    with path.open("wb") as out:
        window = terminal("replying('x' * 90 + chr(27))", columns=20, stdout=out)
    window.prompt()
    window.run("one")
    window.leave()
    assert path.read_bytes() == b"x" * 90 + b"\x1b\n"
    assert os.path.exists(path)
