"""The page on chat: its example is what is shown, and every command is in it."""

import io
import re
import sys
from pathlib import Path

from scripted import USER, replying, scripted_llama

from llama3jit.cli.repl.commands import ALIASES, COMMANDS
from llama3jit.cli.repl.conversation import Conversation, Talk
from llama3jit.cli.repl.loop import run
from llama3jit.cli.repl.settings import SHOWN, SWITCHES

PAGE = Path(__file__).parents[2] / "docs/chat.md"
FIGURE = re.compile(r"\d+\.\d+|(?<=memory )\d+")  # a time, a speed, memory


class Script:
    """Types lines, and shows them as a terminal does."""

    def __init__(self, lines):
        self.lines = list(lines)

    def read(self, text=""):
        if not self.lines:
            raise EOFError
        line = self.lines.pop(0)
        print(f">>> {line}")
        return line


def counting(history):
    return replying(f"I see messages: {history.count(USER)}.")(history)


def transcript(lines, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr(sys, "stderr", shown)
    talk = Talk(scripted_llama(counting).llama, Conversation(), at_terminal=True)
    run(talk, Script(lines))
    monkeypatch.undo()
    return FIGURE.sub("N", shown.getvalue()).rstrip()


def test_the_example_is_what_is_shown(monkeypatch, tmp_path):
    (example,) = re.findall(r"^```\n(>>> .*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = [line[4:] for line in example.splitlines() if line.startswith(">>> ")]
    monkeypatch.chdir(tmp_path)
    shown = transcript(lines, monkeypatch)
    assert shown == FIGURE.sub("N", example).rstrip()
    words = {line.split()[0] for line in lines if line.startswith("/")}
    assert words >= {*COMMANDS} - {"/edit"}, "every command but /edit, which opens an editor"


def test_every_command_is_in_the_page():
    text = PAGE.read_text()
    for name in (*COMMANDS, *(alias for alias in ALIASES if alias != "/?")):
        assert re.search(rf"^\| .*{name}\b", text, re.MULTILINE), name
    for word in SWITCHES:
        assert f"/set {word}" in text
    shown = re.search(r"^\| /show (.*?) \|", text, re.MULTILINE)
    assert shown[1].split(", ") == list(SHOWN)
