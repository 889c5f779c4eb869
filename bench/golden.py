"""How close the logits are to the truth: a float64 forward pass of the dequantised weights.

    python bench/golden.py [--model MODEL] [--golden FILE] [--device D] [--threads N]
        [--kv-dtypes A,B] [--json]

The golden file has, for each input, ids [T], the 64 largest logits of every row by float64
(top_ids, top_logits) and the log-sum-exp of the row (lse), and llama.cpp's logits at the same ids
with its own lse and argmax. The measure is the KL divergence over those ids and one bucket for the
rest, in nats, averaged over rows; and how often the largest logit is the same one.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llama3jit.devices.choose import open_runner
from llama3jit.errors import Llama3JitError
from llama3jit.files.gguf import open_gguf
from llama3jit.files.store import resolve
from llama3jit.model.batch import Piece, make_batch
from llama3jit.model.config import read_config

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT.parent / "shared" / "golden" / "smollm2-135m-q4_1.npz"
INPUTS = ("capital", "haiku", "code", "license")
# Mode -> what the runner is opened with.
MODES = {
    "fast": {"precision": "fast", "kv_dtype": "f16"},
    "exact": {"precision": "exact", "kv_dtype": "f32"},
}

Floats = NDArray[np.floating[Any]]
Golden = Mapping[str, NDArray[Any]]
Table = dict[str, dict[str, float]]


def kl_of(golden: Golden, name: str, logits: Floats, lse: Floats) -> Floats:
    """KL of each row, [T], from logits [T, 64] at the golden ids and the row's log-sum-exp [T]."""

    def with_rest(logits: Floats, lse: Floats) -> Floats:
        p = np.exp(logits.astype(np.float64) - lse.astype(np.float64)[:, None])
        rest = np.maximum(1 - p.sum(axis=1, keepdims=True), 1e-12)
        return np.concatenate([p, rest], axis=1)

    truth = with_rest(golden[f"{name}/top_logits"], golden[f"{name}/lse"])
    found = with_rest(logits, lse)
    divergence: Floats = (truth * np.log(truth / found)).sum(axis=1)
    return divergence


def kl_rows(logits: Floats, golden: Golden, name: str) -> Floats:
    """KL of each row, [T], from whole rows of logits [T, vocab] for the input of that name."""
    wide = logits.astype(np.float64)
    largest = wide.max(axis=1)
    lse = largest + np.log(np.exp(wide - largest[:, None]).sum(axis=1))
    return kl_of(golden, name, np.take_along_axis(wide, golden[f"{name}/top_ids"], axis=1), lse)


def same_top(argmax: NDArray[Any], golden: Golden, name: str) -> NDArray[np.bool_]:
    """Whether each row's largest logit is float64's, [T]."""
    agreement: NDArray[np.bool_] = argmax == golden[f"{name}/top_ids"][:, 0]
    return agreement


def measure(
    model: Path,
    golden: Golden,
    mode: str,
    threads: int | None = None,
    kv_dtype: str | None = None,
    device: str = "cpu",
) -> Table:
    """For each input and "all": rows, and our and llama.cpp's mean KL ("kl", "llamacpp_kl") and
    top-1 agreement ("top_1", "llamacpp_top_1"). `kv_dtype` in place of the mode's own."""
    rows: dict[str, list[NDArray[Any]]] = {}
    with open_gguf(model) as gguf:
        options: dict[str, Any] = dict(MODES[mode])
        if kv_dtype is not None:
            options["kv_dtype"] = kv_dtype
        n_ctx = max(len(golden[f"{name}/ids"]) for name in INPUTS)
        runner = open_runner(
            gguf, read_config(gguf), device=device, n_ctx=n_ctx, threads=threads, **options
        )
        chunk = min(runner.limits.max_logits_rows, runner.limits.max_tokens)
        blocks = range(-(-n_ctx // runner.limits.block_tokens))
        for name in INPUTS:
            ids = golden[f"{name}/ids"]
            parts = []
            for first in range(0, len(ids), chunk):
                piece = Piece(ids[first : first + chunk].tolist(), first, blocks, "all")
                parts.append(runner.forward(make_batch([piece])).copy())
            logits = np.concatenate(parts)
            theirs = golden[f"{name}/llamacpp_logits"], golden[f"{name}/llamacpp_lse"]
            rows[name] = [
                kl_rows(logits, golden, name),
                kl_of(golden, name, *theirs),
                same_top(logits.argmax(axis=1), golden, name),
                same_top(golden[f"{name}/llamacpp_argmax"], golden, name),
            ]
        runner.close()
    rows["all"] = [np.concatenate(column) for column in zip(*rows.values(), strict=True)]
    keys = ("kl", "llamacpp_kl", "top_1", "llamacpp_top_1")
    return {
        name: {"rows": len(columns[0])}
        | {key: float(column.mean()) for key, column in zip(keys, columns, strict=True)}
        for name, columns in rows.items()
    }


def as_text(mode: str, table: Table) -> str:
    """A table in markdown."""
    lines = [
        f"| {mode} | rows | mean KL | llama.cpp's | top-1 | llama.cpp's |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, row in table.items():
        lines.append(
            f"| {name} | {row['rows']} | {row['kl']:.2e} | {row['llamacpp_kl']:.2e} "
            f"| {row['top_1']:.4f} | {row['llamacpp_top_1']:.4f} |"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--golden", type=Path, default=GOLDEN)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--kv-dtypes", type=lambda text: text.split(","), default=[None])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        if not given.golden.is_file():
            raise Llama3JitError(f"{given.golden}: no such file; give one by --golden")
        with np.load(given.golden) as file:
            golden = {key: file[key] for key in file.files}
        model = resolve(given.model)
        tables = {
            f"{mode}, {kv_dtype}" if kv_dtype else mode: measure(
                model, golden, mode, given.threads, kv_dtype, given.device
            )
            for mode in MODES
            for kv_dtype in given.kv_dtypes
        }
    except Llama3JitError as error:
        print(f"golden: {error}", file=sys.stderr)
        return error.exit_code
    if given.json:
        print(json.dumps(tables))
    else:
        print("\n\n".join(as_text(mode, table) for mode, table in tables.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
