"""Where the time of a forward pass goes: every row of it timed on its device, beside the least that
it must read and compute.

As data (`profile`), a table (`table`), a roofline plot (`plot`, an SVG picture) and a trace that
Perfetto and Chrome open (`trace`).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from llama3jit.arguments import Progress
    from llama3jit.devices.work import TimedRow


FILL = 512  # tokens of a pass that fills the cache


@dataclass(frozen=True, slots=True)
class Profile:
    """One pass: `rows` in order, seconds of the whole pass as it is run, and bytes a second that a
    plain read of the device's memory reaches."""

    model: str
    device: str
    n_tokens: int
    depth: int
    rows: list[TimedRow]
    seconds: float
    read_rate: float


def profile(
    path: str | Path,
    *,
    n_tokens: int = 1,
    depth: int = 0,
    device: str = "auto",
    threads: int | None = None,
    repeats: int = 10,
    progress: Progress | None = None,
    **options: Any,
) -> Profile:
    """Load a model and time a pass of `n_tokens` of one sequence, which has `depth` tokens already;
    `options` are those of open_runner.

    Raises InvalidArgumentError on a device whose rows have no clock, and what loading raises.
    """
    from llama3jit.devices.choose import open_runner
    from llama3jit.errors import InvalidArgumentError
    from llama3jit.files.gguf import open_gguf
    from llama3jit.files.store import resolve
    from llama3jit.model.config import read_config

    file = resolve(path)
    with open_gguf(file) as gguf:
        runner = open_runner(
            gguf,
            read_config(gguf),
            device=device,
            n_ctx=n_tokens + depth,
            threads=threads,
            max_sequences=1,
            max_tokens=max(n_tokens, min(depth, FILL)),
            progress=progress,
            **options,
        )
        try:
            batch = last_batch(runner, n_tokens, depth)
            if runner.device == "cpu":
                from llama3jit.devices.cpu import timing as cpu
                from llama3jit.devices.cpu.threads import thread_count

                rows, seconds = cpu.timed_rows(runner, batch, repeats)  # type: ignore[arg-type]
                rate = cpu.read_rate(thread_count(threads), repeats)
            elif runner.device.startswith("cuda:"):
                from llama3jit.devices.cuda import timing as cuda

                rows, seconds = cuda.timed_rows(runner, batch, repeats)  # type: ignore[arg-type]
                rate = cuda.read_rate(runner, repeats)  # type: ignore[arg-type]
            else:
                raise InvalidArgumentError(
                    f"the rows of the device {runner.device!r} have no clock; expected cpu or cuda"
                )
            return Profile(str(file), runner.device, n_tokens, depth, rows, seconds, rate)
        finally:
            runner.close()


def last_batch(runner: Any, n_tokens: int, depth: int) -> Any:
    """Fill the cache with `depth` tokens; the batch that comes after them."""
    from random import Random

    from llama3jit.model.batch import Piece, make_batch

    ids = Random(0)
    tokens = [ids.randrange(runner.limits.vocab_size) for _ in range(depth + n_tokens)]
    most = runner.limits.max_tokens
    ends = [*range(most, depth, most), *([depth] if depth else []), depth + n_tokens]
    for begin, end in zip([0, *ends], ends, strict=False):
        table = range(-(-end // runner.limits.block_tokens))
        batch = make_batch([Piece(tokens[begin:end], begin, table)])
        if end <= depth:
            runner.forward(batch)
    return batch


def table(found: Profile) -> str:
    """Rows of one kernel and size together, the longest first, and all of them; in markdown."""
    from llama3jit.devices.work import TimedRow, grouped

    total = TimedRow(
        "all",
        "",
        sum(row.seconds for row in found.rows),
        sum(row.nbytes for row in found.rows),
        sum(row.operations for row in found.rows),
    )
    lines = [
        "| row | sizes | rows | us each | us | share | GB/s | of a read | GFLOP/s |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row, count in [*grouped(found.rows), (total, len(found.rows))]:
        rate = row.nbytes / row.seconds
        operations = f"{row.operations / row.seconds / 1e9:.0f}" if row.operations else ""
        lines.append(
            f"| {row.name} | {row.sizes} | {count} | {1e6 * row.seconds / count:.2f} "
            f"| {1e6 * row.seconds:.1f} | {row.seconds / total.seconds:.1%} | {rate / 1e9:.1f} "
            f"| {rate / found.read_rate:.0%} | {operations} |"
        )
    lines += [
        "",
        f"{found.n_tokens} tokens after {found.depth} on {found.device}: the whole pass takes "
        f"{1e3 * found.seconds:.3f} ms, {found.n_tokens / found.seconds:.1f} tok/s; a plain read "
        f"of memory gets {found.read_rate / 1e9:.1f} GB/s",
    ]
    return "\n".join(lines)


def trace(found: Profile) -> str:
    """The rows one after the other as Chrome's trace events, in JSON."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": found.model}},
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": found.device}},
    ]
    at = 0.0
    for i, row in enumerate(found.rows):
        about = {
            "row": i,
            "sizes": row.sizes,
            "GB/s": round(row.nbytes / row.seconds / 1e9, 1),
            "GFLOP/s": round(row.operations / row.seconds / 1e9, 1),
        }
        events.append(
            {
                "name": row.name,
                "ph": "X",
                "pid": 0,
                "tid": 0,
                "ts": round(1e6 * at, 3),
                "dur": round(1e6 * row.seconds, 3),
                "args": about,
            }
        )
        at += row.seconds
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 860, 560, 80, 50, 30, 60


def plot(found: Profile) -> str:
    """A roofline plot (Williams, Waterman and Patterson 2009) as SVG: operations a byte against
    operations a second, a dot for each kind of row, as large as its share of the time. The slope
    is what a plain read of memory allows, the level the best of the rows."""
    from llama3jit.devices.work import grouped

    groups = [row for row, _ in grouped(found.rows) if row.operations]
    if not groups:
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"/>\n'
    points = [(row.operations / row.nbytes, row.operations / row.seconds) for row in groups]
    best = max(speed for _, speed in points)
    x_low, x_high = _decades([x for x, _ in points] + [best / found.read_rate])
    y_low, y_high = _decades([y for _, y in points] + [best])

    def x_of(value: float) -> float:
        share = (math.log10(value) - x_low) / (x_high - x_low)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y_of(value: float) -> float:
        share = (math.log10(value) - y_low) / (y_high - y_low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, 22, f"{found.n_tokens} tokens after {found.depth} on {found.device}"),
        _text(WIDTH / 2, HEIGHT - 14, "operations a byte"),
        _text(16, TOP - 16, "operations a second", "start"),
    ]
    for power in range(x_low, x_high + 1):
        x = x_of(10.0**power)
        parts += [_line(x, TOP, x, HEIGHT - BOTTOM), _text(x, HEIGHT - BOTTOM + 18, f"1e{power}")]
    for power in range(y_low, y_high + 1):
        y = y_of(10.0**power)
        parts += [_line(LEFT, y, WIDTH - RIGHT, y), _text(LEFT - 8, y + 4, f"1e{power}", "end")]
    ridge = best / found.read_rate
    foot = max(10.0**x_low, 10.0**y_low / found.read_rate)
    roof = [(foot, foot * found.read_rate), (ridge, best), (10.0**x_high, best)]
    corners = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in roof)
    parts.append(f'<polyline points="{corners}" fill="none" stroke="#c33" stroke-width="2"/>')
    whole = sum(row.seconds for row in found.rows)
    for row, (x, y) in zip(groups, points, strict=True):
        radius = 3 + 22 * math.sqrt(row.seconds / whole)
        about = f"{row.name}, {row.sizes}: {1e6 * row.seconds:.1f} us"
        parts.append(
            f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="{radius:.1f}" fill="#36c" '
            f'fill-opacity="0.45"><title>{escape(about)}</title></circle>'
        )
        parts.append(_text(x_of(x), y_of(y) - radius - 3, f"{row.name} {row.sizes}"))
    return "\n".join([*parts, "</svg>", ""])


def _decades(values: list[float]) -> tuple[int, int]:
    """Powers of ten around some numbers."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#ddd"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
