"""`llama3jit profile`: where the time of a forward pass goes."""

from pathlib import Path
from typing import Annotated

from llama3jit.cli import options


def profile(
    model: options.OptionalModel = None,
    tokens: Annotated[
        int, options.option("--tokens", "-p", min=1, help="Tokens of the pass. [default: 1]")
    ] = 1,
    depth: Annotated[
        int, options.option("--n-depth", "-d", min=0, help="Tokens before them. [default: 0]")
    ] = 0,
    repeats: Annotated[
        int, options.option("--repetitions", "-r", min=1, help="Timed passes. [default: 10]")
    ] = 10,
    device: options.Device = "auto",
    threads: options.Threads = None,
    kv_dtype: options.KVDtype = "f16",
    precision: options.Precision = "fast",
    plot: Annotated[
        Path | None, options.option("--plot", help="Write a roofline plot, an SVG picture.")
    ] = None,
    trace: Annotated[
        Path | None,
        options.option("--trace", help="Write a trace for ui.perfetto.dev or Chrome, JSON."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Time every op of a forward pass.

    The table has the bytes and operations a second of each kind of row, beside what a plain read of
    the memory gets.
    """
    from dataclasses import asdict
    from json import dumps

    from llama3jit import profile as profiling
    from llama3jit.cli.loading import Progress, model_or_default

    shown = Progress()
    try:
        found = profiling.profile(
            model_or_default(model),
            n_tokens=tokens,
            depth=depth,
            device=device,
            threads=threads,
            repeats=repeats,
            progress=shown,
            kv_dtype=kv_dtype,
            precision=precision,
        )
    finally:
        shown.clear()
    print(dumps(asdict(found), indent=1) if json else profiling.table(found))
    if plot is not None:
        plot.write_text(profiling.plot(found))
    if trace is not None:
        trace.write_text(profiling.trace(found))
