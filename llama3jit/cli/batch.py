"""`llama3jit batch`: a file of requests into a file of results."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llama3jit.cli import options
from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama3jit.batch import Totals


def batch(
    file: Annotated[Path, typer.Argument(help="A JSONL file of requests; - is stdin.")],
    model: options.OptionalModel = None,
    out: Annotated[
        Path | None, options.option("--out", "-o", metavar="FILE", help="Where results are added.")
    ] = None,
    parallel: Annotated[
        int, options.option("--parallel", min=1, max=256, help="Requests at once. [default: 8]")
    ] = 8,
    device: options.Device = "auto",
    n_ctx: options.ContextSize = None,
    threads: options.Threads = None,
    kv_dtype: options.KVDtype = "f16",
    precision: options.Precision = "fast",
) -> None:
    """Answer a file of requests in the form of OpenAI's Batch API.

    Each line of FILE has custom_id, method (POST), url (/v1/chat/completions, /v1/completions or
    /v1/embeddings) and body. Each line of the results has custom_id, and response or error. They
    are in the order in which they were done. A request that fails gets a line with its error, and
    the others go on; the exit status is then 1.

    Run it again to go on where it was ended: what has a line in the results, be it an error, is
    not done again, and a line that was only half written is.
    """
    from llama3jit.batch import Totals, left_to_do, mend, read_tasks, run_batch
    from llama3jit.cli.interrupts import ending_in_order
    from llama3jit.cli.loading import open_model

    if out is None:
        raise InvalidArgumentError("there is nowhere for the results: give -o FILE")
    if str(file) != "-" and out.exists() and file.exists() and out.samefile(file):
        raise InvalidArgumentError(f"{out} is the file of requests: give another one to -o")
    everything = read_tasks(_lines(file))
    tasks = left_to_do(everything, mend(out))
    totals = Totals(len(everything), before=len(everything) - len(tasks))
    if tasks:
        more = {"max_sequences": parallel}
        with (
            ending_in_order(),
            open_model(model, device, n_ctx, threads, kv_dtype, precision, **more) as llm,
            _progress(totals) as report,
        ):
            run_batch(llm, tasks, out, totals, at_once=parallel, report=report)
    elif not out.exists():
        out.touch()
    _say_totals(totals)
    if totals.failed:
        raise typer.Exit(1)


def _lines(file: Path) -> list[bytes]:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"{file} cannot be read: {error.strerror}") from None
    return data.split(b"\n")


def _say_totals(totals: Totals) -> None:
    words = [f"{totals.done} done"]
    if totals.failed:
        words.append(f"{totals.failed} of them with an error")
    if totals.before:
        words.append(f"{totals.before} were there")
    print(", ".join(words), file=sys.stderr)


@contextmanager
def _progress(totals: Totals) -> Iterator[Callable[[], None]]:
    """A bar on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    import time

    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    began = time.monotonic()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task("", total=totals.lines, completed=totals.before)

        def report() -> None:
            speed = totals.tokens / (time.monotonic() - began)
            words = f"{speed:.0f} tok/s" + f", {totals.failed} failed" * bool(totals.failed)
            bars.update(task, completed=totals.before + totals.done, description=words)

        yield report
