"""`llama3jit inspect`: what a model file holds, of any architecture and with any tensor types."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from llama3jit.files.gguf import GGUFFile


def inspect(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A pulled model, or a path.")],
    tensors: Annotated[
        bool, typer.Option("--tensors", envvar="LLAMA3JIT_TENSORS", help="List the tensors too.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", envvar="LLAMA3JIT_JSON", help="Print a JSON object.")
    ] = False,
) -> None:
    """Show a model file's metadata, tensors and totals; reads its header alone."""
    import json

    from llama3jit.files.gguf import open_gguf
    from llama3jit.files.store import resolve

    with open_gguf(resolve(model)) as file:
        report = _report(file, tensors)
    if as_json:
        report["metadata"] = {key: _finite(value) for key, value in report["metadata"].items()}
    print(json.dumps(report, indent=1) if as_json else "\n".join(_text(report)))


def _report(file: GGUFFile, with_tensors: bool) -> dict[str, Any]:
    """All that is shown."""
    report = {
        "file": str(file.path),
        "shards": [str(path) for path in file.paths],
        "bytes": sum(path.stat().st_size for path in file.paths),
        "version": file.version,
        "alignment": file.alignment,
        "metadata": {key: _value(file, key) for key in file.metadata},
        "totals": _totals(file),
    }
    if with_tensors:
        report["tensors"] = [
            {
                "name": tensor.name,
                "type": tensor.type_name,
                "shape": list(tensor.shape),
                "bytes": tensor.nbytes,
                "offset": tensor.offset,
                "shard": tensor.shard,
            }
            for tensor in file.tensors.values()
        ]
    return report


def _value(file: GGUFFile, key: str) -> Any:
    """A scalar as it is; an array by the type and number of its items."""
    if info := file.metadata.array_info(key):
        return {"array": info[0], "length": info[1]}
    return file.metadata[key]


def _finite(value: Any) -> Any:
    """NaN and infinities as text, for JSON has no numbers for them."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _totals(file: GGUFFile) -> dict[str, Any]:
    by_type: dict[str, dict[str, int]] = {}
    for tensor in file.tensors.values():
        row = by_type.setdefault(tensor.type_name, {"tensors": 0, "parameters": 0, "bytes": 0})
        row["tensors"] += 1
        row["parameters"] += math.prod(tensor.shape)
        row["bytes"] += tensor.nbytes
    sums = {
        key: sum(row[key] for row in by_type.values()) for key in ("tensors", "parameters", "bytes")
    }
    return sums | {"by_type": by_type}


def _text(report: dict[str, Any]) -> list[str]:
    totals = report["totals"]
    lines = [_plain(path) for path in report["shards"]]
    lines.append(f"GGUF version {report['version']}, alignment {report['alignment']}")
    lines.append(f"{report['bytes']:,} bytes in the file{'s' * (len(report['shards']) > 1)}")
    lines += ["", "metadata"]
    lines += _columns([(key, _short(value)) for key, value in report["metadata"].items()])
    lines += ["", "totals"]
    rows = totals["by_type"] | {"all": totals}
    table: list[tuple[str, ...]] = [("type", "tensors", "parameters", "bytes")]
    for name, row in rows.items():
        table.append((name, *(f"{row[key]:,}" for key in table[0][1:])))
    lines += _columns(table)
    if "tensors" in report:
        lines += ["", "tensors", *_columns(_tensor_table(report["tensors"]))]
    return lines


def _tensor_table(tensors: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    table: list[tuple[str, ...]] = [("name", "type", "shape", "bytes", "offset")]
    for tensor in tensors:
        shape = " x ".join(map(str, tensor["shape"]))
        sizes = f"{tensor['bytes']:,}", f"{tensor['offset']:,}"
        table.append((tensor["name"], tensor["type"], shape, *sizes))
    return table


def _short(value: Any) -> str:
    """A value on one line: long text is cut, and nothing in it can steer a terminal."""
    if isinstance(value, dict):
        return f"{value['length']:,} x {value['array']}"
    if not isinstance(value, str):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return repr(value) if len(value) <= 72 else f"{value[:72]!r}... ({len(value):,} characters)"


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows as aligned lines, indented by two."""
    rows = [tuple(map(_plain, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = ((cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return ["  " + "  ".join(row).rstrip() for row in cells]
