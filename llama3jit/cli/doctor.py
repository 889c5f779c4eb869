"""`llama3jit doctor`: this machine, and what will be used of it."""

import textwrap
from collections.abc import Iterator
from typing import Any

import typer

from llama3jit.cli import options
from llama3jit.cli.streams import one_line

WIDTH = 100  # columns


def doctor(as_json: options.Json = False) -> None:
    """Show what this machine has, what will be used of it, and why.

    The exit status is 1 when something would stop a load; the last lines say what, and what to do.
    """
    import json

    from llama3jit.doctor import examine

    found = examine()
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        print("\n".join(report(found)))
    if found["problems"]:
        raise typer.Exit(1)


def report(found: dict[str, Any]) -> Iterator[str]:
    """The lines of a table: a part a subject, a row a fact."""
    yield from _row("used", found["used"], 10)
    for subject, facts in found.items():
        if not isinstance(facts, dict) or not facts:
            continue
        yield ""
        yield subject
        width = min(max(map(len, facts)), 30)
        for name, value in facts.items():
            yield from _row(f"  {name}", _text(value), width + 4)
    for kind in ("notes", "problems"):
        if found[kind]:
            yield ""
            yield kind
            for text in found[kind]:
                yield from _row("  -", text, 4)


def _row(name: str, text: str, width: int) -> Iterator[str]:
    """A name and its text, which goes on below itself."""
    lines = textwrap.wrap(one_line(text), WIDTH - width, break_on_hyphens=False) or [""]
    if len(name) >= width:  # a long name has a line of its own
        yield name
        name = ""
    yield f"{name:<{width}}{lines[0]}"
    yield from (f"{'':<{width}}{line}" for line in lines[1:])


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key} {_text(part)}" for key, part in value.items()) or "nothing"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
