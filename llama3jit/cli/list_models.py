"""`llama3jit list`: the local models."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def list_models(
    as_json: Annotated[
        bool, typer.Option("--json", envvar="LLAMA3JIT_JSON", help="Print a JSON array.")
    ] = False,
) -> None:
    """List the models in the local store."""
    import json

    from llama3jit.files.store import default_store

    store = default_store()
    models = store.models()
    keys = ("name", "file", "size", "sha256", "source", "date")
    if as_json:
        print(
            json.dumps([{key: getattr(model, key) for key in keys} for model in models], indent=1)
        )
        return
    if not models:
        from llama3jit.files.catalogue import DEFAULT_MODEL

        print(f"no models in {store.root}; try: llama3jit pull {DEFAULT_MODEL}", file=sys.stderr)
        return
    from llama3jit.cli.streams import one_line

    table: list[tuple[str, ...]] = [("NAME", "SIZE", "SHA256", "PULLED", "SOURCE", "FILE")]
    for model in models:
        size, sha256 = f"{model.size / 1e6:.1f} MB", model.sha256[:12] or "unknown"
        # The sources are what somebody typed, or what a record says.
        cells = (model.name, size, sha256, model.date[:10], model.source, model.file)
        table.append(tuple(map(one_line, cells)))
    widths = [max(len(row[column]) for row in table) for column in range(6)]
    for row in table:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(padded).rstrip())
