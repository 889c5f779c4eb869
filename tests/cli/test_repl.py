"""The parts of the terminal's conversation: entries, wrapping, commands, files, completion."""

import io
import json
import random

import pytest
from scripted import ASSISTANT, replying, scripted_llama

from llama3jit.cli.repl.answering import take
from llama3jit.cli.repl.commands import COMMANDS
from llama3jit.cli.repl.completion import candidates
from llama3jit.cli.repl.conversation import Conversation, Talk
from llama3jit.cli.repl.entry import is_open, message_of, unfenced
from llama3jit.cli.repl.rendering import Wrapped, shown
from llama3jit.cli.repl.saving import load, save
from llama3jit.cli.repl.settings import parsed
from llama3jit.errors import InvalidArgumentError


def talk_with(script, **fields):
    return Talk(scripted_llama(script).llama, Conversation(), at_terminal=True, **fields)


@pytest.fixture
def told(capsys):
    """Take lines, and give what was shown for the last."""

    def run(talk, *lines):
        for line in lines:
            capsys.readouterr()
            take(talk, line)
        out, err = capsys.readouterr()
        return out + err

    return run


@pytest.mark.parametrize(
    ("typed", "opened", "message"),
    [
        ("hi", False, "hi"),
        ("//etc/passwd", False, "/etc/passwd"),
        ('"""a', True, '"""a'),
        ('"""a\nb"""', False, "a\nb"),
        ('"""doc"""\ncode', False, '"""doc"""\ncode'),
        ('def f():\n    """doc', False, 'def f():\n    """doc'),
        ('/system """a', True, '/system """a'),
        ('/tokens a"""', False, '/tokens a"""'),
        ('""""""', False, ""),
        ("  \n ", False, ""),
    ],
)
def test_entries(typed, opened, message):
    assert is_open(typed) == opened
    assert message_of(typed) == message


def test_a_fence_keeps_the_spaces_inside():
    assert unfenced('"""\n  a\n b \n"""') == "  a\n b "


def test_control_characters_are_shown_and_scripts_are_left_alone():
    assert shown("a\x1b[31mb\r\n\tc\x7f\x9b") == "a\\x1b[31mb\n\tc\\x7f\\x9b"
    assert shown("\u202eabc\ud800") == "\\u202eabc\\ud800"
    for text in ("नमस्ते", "👨\u200d👩\u200d👧 ❤\ufe0f", "می\u200cخواهم", "日本 \xa0x"):
        assert shown(text) == text


def screen(written, columns):
    """The lines on a screen of so many columns; letters take one or two cells."""
    lines, at = [[]], 0
    for letter in written:
        if letter == "\n":
            lines.append([])
            at = 0
        elif letter == "\b":
            assert at > 0
            at -= 1
        else:
            cells = [letter, ""] if ord(letter) >= 0x1100 else [letter]
            lines[-1][at : at + len(cells)] = cells
            at += len(cells)
        assert at < columns, "the last column stays empty"
    return ["".join(line).rstrip(" ") for line in lines]


def wrapped(parts, columns):
    out = io.StringIO()
    writer = Wrapped(out, lambda: columns)
    for part in parts:
        writer.write(part)
    return screen(out.getvalue(), columns)


def test_words_go_to_the_next_line_whole():
    assert wrapped(["the quick brown fox"], 12) == ["the quick", "brown fox"]
    assert wrapped(["a\n\n  b ", "c"], 12) == ["a", "", "  b c"]
    assert wrapped(["x" * 11, " ", " \ny"], 12) == ["x" * 11, "y"]


def test_words_longer_than_the_line_are_cut():
    assert wrapped(["ab " + "x" * 25], 12) == ["ab", "x" * 11, "x" * 11, "xxx"]


def test_wide_characters_take_two_cells():
    assert wrapped(["日本語日本語日本語"], 12) == ["日本語日本", "語日本語"]
    assert wrapped(["x" * 10 + "日"], 12) == ["x" * 10, "日"]


def test_narrow_terminals_and_none_are_left_alone():
    out = io.StringIO()
    Wrapped(out, lambda: 5).write("the quick brown fox")
    assert out.getvalue() == "the quick brown fox"


def test_parts_of_any_size_give_the_same_screen():
    drawn = random.Random(1)
    text = "".join(drawn.choice("ab  c日\nd") for _ in range(600)) + "z" * 40 + " end"
    whole = wrapped([text], 17)
    assert wrapped(list(text), 17) == whole
    for _ in range(20):
        cuts = sorted(drawn.sample(range(len(text)), 60))
        parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert wrapped(parts, 17) == whole
    words = [word for line in whole for word in line.replace("日", " 日 ").split()]
    assert "".join(words) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("0.5", "float", 0.5),
        ("40", "int", 40),
        ("off", "bool", False),
        ("true", "bool", True),
        ("", "float", None),
        ("default", "int | None", None),
        ("5", "str | Sequence[str]", "5"),
        ('["a", "b"]', "str | Sequence[str]", ["a", "b"]),
        ('"a b"', "str | Sequence[str]", "a b"),
        ("shift", "OnOverflow | None", "shift"),
        ('{"5": -1.5}', "Mapping[int, float]", {5: -1.5}),
        ('{"type": "json_object"}', "dict", {"type": "json_object"}),
    ],
)
def test_values_of_parameters(text, kind, value):
    assert parsed(text, kind) == value


def test_every_sampling_argument_can_be_set():
    from llama3jit.arguments import Sampling

    names = {n for n, k in Sampling.__annotations__.items() if "Callable" not in str(k)}
    start, found = candidates("/set parameter ")
    assert start == len("/set parameter ")
    assert set(found) == names


def test_parameters_reach_the_model(told):
    talk = talk_with(replying("abcdef"))
    assert told(talk, "/set parameter max_tokens 3", "x") == "abc\n"
    assert "expected 1 or more" in told(talk, "/set max_tokens 0")
    assert told(talk, "/set max_tokens", "x") == "abcdef\n"
    assert "no parameter 'nonsense'" in told(talk, "/set parameter nonsense")
    assert "Python function" in told(talk, "/set sampler 5")
    assert "on_overflow is 'x'" in told(talk, "/set on_overflow x")
    assert talk.conversation.parameters == {}


def test_undo_and_regen(told):
    def script(history):
        return replying(str(history.count(ASSISTANT)))(history)

    talk = talk_with(script)
    assert "no turn yet" in told(talk, "/regen")
    assert "0 turns; 1 cannot" in told(talk, "/undo")
    assert told(talk, "a", "b", "c") == "3\n"
    assert told(talk, "/undo 2", "/regen") == "1\n"
    assert [m["content"] for m in talk.conversation.messages] == ["a", "1"]
    assert "no count" in told(talk, "/undo x")


def test_regen_that_fails_keeps_the_old_reply(told):
    talk = talk_with(replying("ok"))
    told(talk, "hi")
    before = list(talk.conversation.messages)
    told(talk, "/system " + "x" * 200)
    assert "holds 128 tokens" in told(talk, "/regen")
    assert talk.conversation.messages == before
    assert talk.unsent == ""


def test_a_conversation_is_saved_and_loaded(told, tmp_path):
    path = tmp_path / "a talk.json"
    talk = talk_with(replying("fine\x1b"))
    told(talk, "/system be kind", "/set stop END", "/set seed 7", "how are you?\udcff")
    assert "saved 1 turn" in told(talk, f"/save {path}")
    assert "saved 1 turn" in told(talk, f"/save {path}")  # over itself
    other = talk_with(replying("x"))
    assert "loaded 1 turn" in told(other, f"/load {path}")
    assert other.conversation == talk.conversation
    assert list(tmp_path.iterdir()) == [path]


SOUND = {
    "format": "llama3jit conversation",
    "version": 1,
    "system": None,
    "parameters": {},
    "messages": [{"role": "user", "content": "a"}],
}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("nonsense", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds no conversation"),
        ({}, "holds no conversation"),
        ({**SOUND, "version": 2}, "version 2"),
        ({**SOUND, "more": 1}, "more"),
        ({**SOUND, "system": 5}, "system is 5"),
        ({**SOUND, "parameters": []}, "parameters is"),
        ({**SOUND, "parameters": {"top_q": 1}}, "did you mean 'top_k'|did you mean 'top_p'"),
        ({**SOUND, "parameters": {"top_k": -1}}, "top_k is -1"),
        ({**SOUND, "messages": "hi"}, "messages is str"),
        ({**SOUND, "messages": [{"role": "user"}]}, "messages\\[0\\]"),
    ],
)
def test_what_is_no_conversation_is_refused(content, complaint, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InvalidArgumentError, match=complaint):
        load(path)


def test_a_refused_file_changes_nothing(told, tmp_path):
    talk = talk_with(replying("x"))
    told(talk, "one")
    before = talk.conversation
    assert "cannot be read" in told(talk, f"/load {tmp_path}/none")
    assert "not a file" in told(talk, f"/load {tmp_path}")
    assert talk.conversation is before


def test_other_files_are_not_written_over(told, tmp_path):
    path = tmp_path / "precious"
    path.write_text("mine")
    talk = talk_with(replying("x"))
    assert "left alone" in told(talk, f"/save {path}")
    assert path.read_text() == "mine"
    assert "is a folder" in told(talk, f"/save {tmp_path}")
    assert "cannot be written" in told(talk, f"/save {tmp_path}/none/x")
    assert "expected a file" in told(talk, "/save")
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_cut_short_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    save(Conversation("old"), path)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InvalidArgumentError, match="No space left"):
        save(Conversation("new"), path)
    assert load(path).system == "old"
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600


def test_probs_are_those_of_the_model(told):
    talk = talk_with(replying("yes"))
    lines = told(talk, "/probs 2 well?").splitlines()
    assert len(lines) == 2
    assert lines[0].split() == ["100.00", "%", "121", '"y"']
    assert "nothing has been said" in told(talk, "/probs")
    told(talk, "well?")
    assert told(talk, "/probs 1").split()[2] == "257"  # the reply ends there


def test_what_is_piped_in_has_no_more_than_it_had(capsys):
    talk = Talk(scripted_llama(replying("x")).llama, Conversation())
    for name, command in COMMANDS.items():
        take(talk, f"{name} x")
        refused = "is no command" in capsys.readouterr().err
        assert refused != command.piped or name == "/help", name


def test_the_history_file(tmp_path):
    from llama3jit.cli.repl.history import MAX_BYTES, PrivateHistory

    path = tmp_path / "h"
    path.write_text("".join(f"\n# date\n+{i}\n+{'x' * 99}\n" for i in range(MAX_BYTES // 100)))
    path.chmod(0o644)
    history = PrivateHistory(path, lambda: True)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_size < MAX_BYTES
    history.append_string("a\nb\ud800")
    kept = list(PrivateHistory(path, lambda: True).load_history_strings())
    assert kept[0] == "a\nb?"
    assert all(entry.endswith("x" * 99) for entry in kept[1:])


def test_what_cannot_be_a_history_file_is_left_alone(tmp_path):
    import os

    from llama3jit.cli.repl.history import PrivateHistory

    os.mkfifo(tmp_path / "fifo", 0o644)
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "file" / "below"):
        mode = path.stat().st_mode if path.name != "below" else None
        history = PrivateHistory(path, lambda: True)
        history.append_string("a")
        assert list(history.load_history_strings()) == []
        assert mode is None or path.stat().st_mode == mode


def test_completion(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a b.json").touch()
    (tmp_path / ".hidden").touch()
    assert candidates("/s") == (0, ["/save", "/set", "/show", "/stats", "/system"])
    assert candidates("/show c") == (6, ["context"])
    assert candidates("/load ") == (6, ["inner/"])
    assert candidates("/load .h") == (6, [".hidden"])
    assert candidates("/save ~/inner/a b") == (6, ["~/inner/a b.json"])
    assert candidates("/load none/") == (6, [])
    assert candidates("/help tok")[1] == ["tokens"]
    for line in ("plain", "//s", "/nope x", "/bye x", "/s\nx"):
        assert candidates(line)[1] == []
