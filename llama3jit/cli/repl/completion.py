"""What Tab offers: commands, what they take, paths."""

from __future__ import annotations

import os

from llama3jit.cli.repl.commands import ALIASES, COMMANDS
from llama3jit.cli.repl.entry import is_command


def candidates(line: str) -> tuple[int, list[str]]:
    """Where in a line that ends at the cursor its last word begins, and what it may become."""
    if not is_command(line) or "\n" in line:
        return len(line), []
    name, space, rest = line.partition(" ")
    if not space:
        return 0, sorted(known for known in (*COMMANDS, *ALIASES) if known.startswith(name))
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        return len(line), []
    if command.takes_path:
        at = len(name) + 1 + len(rest) - len(rest.lstrip())
        return at, _paths(line[at:])
    if command.completes is None:
        return len(line), []
    *before, last = rest.split(" ")
    words = [word for word in before if word]
    offered = sorted(word for word in command.completes(words) if word.startswith(last))
    return len(line) - len(last), offered


def _paths(begun: str) -> list[str]:
    """Files and folders that begin so, hidden ones when asked for; ~ is the home folder."""
    folder, _, name = begun.rpartition("/")
    folder = f"{folder}/" if "/" in begun else ""
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            found = [
                f"{folder}{entry.name}{'/' * entry.is_dir()}"
                for entry in entries
                if entry.name.startswith(name) and (name or not entry.name.startswith("."))
            ]
    except OSError:
        found = []
    return sorted(found)
