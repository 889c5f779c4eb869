"""`llama3jit bench`: the speed of prompt processing and generation, in llama-bench's tables."""

import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

from llama3jit.cli import options
from llama3jit.errors import InvalidArgumentError

NUMBERS = "Also lists and ranges: 1,2,4  1-4  0-512+128  1-64*2."
MAX_NUMBERS = 1000  # of one option

# Columns of the table: title, width (negative: left), what it shows of a row.
COLUMNS: list[tuple[str, int, Any]] = [
    ("model", -30, lambda row: row["model_type"]),
    ("size", 10, lambda row: size(row["model_size"])),
    ("params", 10, lambda row: params(row["model_n_params"])),
    ("backend", -10, lambda row: row["backends"]),
    ("threads", 7, lambda row: row["n_threads"]),
    ("type_k", 6, lambda row: row["type_k"]),
    ("type_v", 6, lambda row: row["type_v"]),
    ("test", 15, lambda row: row["test"]),
    ("t/s", 20, lambda row: f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}"),
]


def bench(
    model: options.OptionalModel = None,
    n_prompt: Annotated[
        str, options.option("--n-prompt", "-p", help=f"Prompt lengths. {NUMBERS} [default: 512]")
    ] = "512",
    n_gen: Annotated[
        str, options.option("--n-gen", "-n", help="Generation lengths. [default: 128]")
    ] = "128",
    n_depth: Annotated[
        str, options.option("--n-depth", "-d", help="Tokens before, untimed. [default: 0]")
    ] = "0",
    repetitions: Annotated[
        int, options.option("--repetitions", "-r", min=1, help="Timed runs. [default: 5]")
    ] = 5,
    threads: Annotated[
        str | None, options.option("--threads", "-t", help="Threads. [default: those of chat]")
    ] = None,
    output: Annotated[
        str, options.option("--output", "-o", help="md, json, jsonl or csv. [default: md]")
    ] = "md",
    sampled: Annotated[
        bool | None,
        options.option(
            "--sampled/--no-sampled",
            help="Also time generation with sampling, a row of its own. [default: with md]",
        ),
    ] = None,
    device: Annotated[
        str,
        options.option(
            "--device", help="A device, or several: cpu,cuda. [default: auto]", metavar="LIST"
        ),
    ] = "auto",
    kv_dtype: options.KVDtype = "f16",
    precision: options.Precision = "fast",
) -> None:
    """Measure speed as llama-bench does.

    Tokens per second: pp is prompt processing, tg generation, both without sampling; "tg sampled"
    is generation as users have it.
    """
    from llama3jit import bench as measuring

    if output not in WRITERS:
        raise InvalidArgumentError(f"--output is {output!r}: expected one of {', '.join(WRITERS)}")
    tests = measuring.plan_tests(
        numbers("--n-prompt", n_prompt), numbers("--n-gen", n_gen), numbers("--n-depth", n_depth)
    )
    if not tests:
        raise InvalidArgumentError("nothing to measure: -p and -n are both 0")
    if sampled or (sampled is None and output == "md"):
        tests += [
            measuring.Test(0, test.n_gen, test.n_depth, sampled=True)
            for test in tests
            if test.n_gen
        ]
    counts = [None] if threads is None else numbers("--threads", threads)
    rows = (
        row
        for name in device.split(",")
        for count in counts
        for row in measured(tests, model, repetitions, name.strip(), count, kv_dtype, precision)
    )
    WRITERS[output](rows)


def numbers(name: str, text: str) -> list[int]:
    """The numbers that an option names."""
    from itertools import islice

    from llama3jit.bench import parse_numbers

    try:
        found = list(islice(parse_numbers(text), MAX_NUMBERS + 1))
    except ValueError:
        found = []
    if not found:
        raise InvalidArgumentError(f"{name} is {text!r}: expected numbers. {NUMBERS}")
    if len(found) > MAX_NUMBERS:
        raise InvalidArgumentError(
            f"{name} is {text!r}: expected {MAX_NUMBERS} numbers or fewer; take larger steps"
        )
    return found


def measured(
    tests: list[Any],
    model: str | None,
    repetitions: int,
    device: str,
    threads: int | None,
    kv_dtype: str,
    precision: str,
) -> Iterator[dict[str, Any]]:
    """A row a test, with the model opened once."""
    from functools import partial

    from llama3jit import bench as measuring
    from llama3jit.background import Background
    from llama3jit.cli.loading import Progress, model_or_default
    from llama3jit.devices.choose import open_runner
    from llama3jit.devices.cpu.threads import thread_count
    from llama3jit.files.gguf import open_gguf
    from llama3jit.files.store import resolve
    from llama3jit.model.config import read_config

    began = time.perf_counter()
    shown = Progress()
    with open_gguf(resolve(str(model_or_default(model)))) as gguf:
        runner = open_runner(
            gguf,
            read_config(gguf),
            device=device,
            n_ctx=max(test.n_ctx for test in tests),
            threads=threads,
            kv_dtype=kv_dtype,
            precision=precision,
            max_sequences=1,
            progress=shown,
        )
        shown.clear()
        print(f"loaded in {time.perf_counter() - began:.2f} s", file=sys.stderr)
        try:
            used = thread_count(threads) if runner.device == "cpu" else 1
            about = measuring.describe(gguf, runner, threads=used, kv_dtype=kv_dtype)
            first = gguf.metadata.get("tokenizer.ggml.bos_token_id")
            for test in tests:
                # In a thread of its own: here, Ctrl-C would wait for the end of the forward pass.
                work = Background(partial(measuring.measure, runner, test, repetitions, first))
                try:
                    work.start()
                    samples = work.result()
                except KeyboardInterrupt:
                    work.cancel(runner.cancel)
                    raise
                yield {**measuring.row_of(test, samples, about), "test": test.name}
        finally:
            runner.close()


def size(nbytes: int) -> str:
    """As llama-bench writes it."""
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.2f} MiB"


def params(count: int) -> str:
    """As llama-bench writes it."""
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"


def write_markdown(rows: Iterator[dict[str, Any]]) -> None:
    """The table, a line as soon as it is measured; type_k and type_v where they are not f16."""
    shown: list[tuple[str, int, Any]] = []
    for row in rows:
        if not shown:
            shown = [c for c in COLUMNS if row.get(c[0]) != "f16"]
            print("| " + " | ".join(pad(title, width) for title, width, _ in shown) + " |")
            print("| " + " | ".join(rule(width) for _, width, _ in shown) + " |")
        print(
            "| " + " | ".join(pad(str(f(row)), width) for _, width, f in shown) + " |", flush=True
        )
    print(f"\nbuild: {row['build_commit']} ({row['build_number']})")


def pad(text: str, width: int) -> str:
    """Left for a negative width, else right."""
    return f"{text:<{-width}}" if width < 0 else f"{text:>{width}}"


def rule(width: int) -> str:
    """What stands under a column's title."""
    return "-" * -width if width < 0 else "-" * (width - 1) + ":"


def write_json(rows: Iterator[dict[str, Any]]) -> None:
    """One array."""
    import json

    print(json.dumps(list(rows), indent=2))


def write_json_lines(rows: Iterator[dict[str, Any]]) -> None:
    """An object a line, as soon as it is measured."""
    import json

    for row in rows:
        print(json.dumps(row), flush=True)


def write_csv(rows: Iterator[dict[str, Any]]) -> None:
    """All fields but the samples, quoted."""
    import csv

    writer = csv.writer(sys.stdout, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for i, row in enumerate(rows):
        flat = {k: v for k, v in row.items() if not k.startswith("samples_") and k != "test"}
        if i == 0:
            print(",".join(flat))
        writer.writerow(flat.values())
        sys.stdout.flush()


WRITERS = {
    "md": write_markdown,
    "json": write_json,
    "jsonl": write_json_lines,
    "csv": write_csv,
}
