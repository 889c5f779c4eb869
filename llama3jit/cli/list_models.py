"""`llama3jit list`: the local models, and those that can be pulled by name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama3jit.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama3jit.files.store import Store

_KEYS = ("name", "file", "size", "sha256", "source", "date")


def list_models(
    everything: Annotated[
        bool, options.option("--all", "-a", help="Also the models that can be pulled by name.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="LLAMA3JIT_JSON", help="Print a JSON array.")
    ] = False,
) -> None:
    """List the models in the local store.

    With --all also what the catalogue offers: `llama3jit pull NAME` fetches it.
    """
    import json

    from llama3jit.files.store import default_store

    store = default_store()
    rows = _all_rows(store) if everything else _local_rows(store)
    if as_json:
        print(json.dumps(rows, indent=1))
    elif rows:
        _print_table(_catalogue_table(rows) if everything else _local_table(rows))
    else:
        from llama3jit.files.catalogue import DEFAULT_MODEL

        print(f"no models in {store.root}; try: llama3jit pull {DEFAULT_MODEL}", file=sys.stderr)


def _local_rows(store: Store) -> list[dict[str, Any]]:
    return [{key: getattr(model, key) for key in _KEYS} for model in store.models()]


def _all_rows(store: Store) -> list[dict[str, Any]]:
    """The local models, and then those of the catalogue that are not here, whose `file` and `date`
    are null."""
    from llama3jit.files.catalogue import CATALOGUE

    rows: list[dict[str, Any]] = []
    for local in _local_rows(store):
        known = CATALOGUE.get(local["name"])
        same = known is not None and known.source == local["source"]
        rows.append(local | {"licence": known.licence if known and same else ""})
    here = {row["name"] for row in rows}
    for known in CATALOGUE.values():
        if known.name not in here:
            told: dict[str, Any] = {key: getattr(known, key, None) for key in _KEYS}
            rows.append(told | {"licence": known.licence})
    return rows


def _local_table(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    table: list[tuple[str, ...]] = [("NAME", "SIZE", "SHA256", "PULLED", "SOURCE", "FILE")]
    for row in rows:
        sha256 = row["sha256"][:12] or "unknown"
        cells = (row["name"], _size(row), sha256, row["date"][:10], row["source"], row["file"])
        table.append(cells)
    return table


def _catalogue_table(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    table: list[tuple[str, ...]] = [("NAME", "SIZE", "HERE", "LICENCE", "SOURCE")]
    for row in rows:
        here = "yes" if row["file"] else "no"
        table.append((row["name"], _size(row), here, row["licence"] or "unknown", row["source"]))
    return table


def _size(row: dict[str, Any]) -> str:
    return f"{row['size'] / 1e6:.1f} MB"


def _print_table(table: Sequence[tuple[str, ...]]) -> None:
    from llama3jit.cli.streams import one_line

    # The sources are what somebody typed, or what a record says.
    lines = [tuple(map(one_line, cells)) for cells in table]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for cells in lines:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print("  ".join(padded).rstrip())
