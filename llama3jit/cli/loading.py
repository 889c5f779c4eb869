"""Opening a model for a command: the default model, progress on stderr, a line of statistics."""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from llama3jit.api import Llama
    from llama3jit.results import Stats


def open_model(
    model: str | None,
    device: str,
    n_ctx: int | None,
    threads: int | None,
    kv_dtype: str,
    precision: str,
    **more: Any,
) -> "Llama":
    """`llama3jit.load` with the options of the command line, showing what takes long."""
    from llama3jit.cli.interrupts import leaving_at_once

    shown = Progress()
    try:
        with leaving_at_once():
            from llama3jit import api

            return api.load(
                model_or_default(model),
                device=device,
                n_ctx=n_ctx,
                threads=threads,
                kv_dtype=kv_dtype,
                precision=precision,
                progress=shown,
                **more,
            )
    finally:
        shown.clear()


def model_or_default(model: str | None) -> "str | Path":
    """The model that was named, or the catalogue's default."""
    if model is not None:
        return model
    from llama3jit.files.catalogue import DEFAULT_MODEL

    return DEFAULT_MODEL


class Progress:
    """Says on stderr why kernels are compiled, and on a terminal how far that is."""

    def __init__(self) -> None:
        self._width = 0
        self._begun = False

    def __call__(self, done: int, total: int, name: str) -> None:
        if not self._begun:
            self._begun = True
            why = f": {name}" if name else ""
            print(f"compiling {total} kernels, once{why}", file=sys.stderr, flush=True)
        elif sys.stderr.isatty():
            line = f"{done}/{total} {name}"
            print(f"\r{line:<{self._width}}", end="", file=sys.stderr, flush=True)
            self._width = max(self._width, len(line))

    def clear(self) -> None:
        """Remove the line."""
        if self._width:
            print(f"\r{'':<{self._width}}\r", end="", file=sys.stderr, flush=True)
            self._width = 0


def describe(stats: "Stats", prompt_tokens: int, completion_tokens: int) -> str:
    """One line of times and speeds."""
    parts = [f"load {stats.load_s:.2f} s"]
    if stats.ttft_s is not None:
        parts.append(f"first token {stats.ttft_s:.2f} s")
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    for what, rate in (
        (f"prompt {prompt_tokens} tokens{cached}", stats.prefill_tokens_per_s),
        (f"reply {completion_tokens} tokens", stats.decode_tokens_per_s),
    ):
        parts.append(what + (f" at {rate:.1f} tok/s" if rate else ""))
    return ", ".join(parts)
