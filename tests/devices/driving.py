"""Opens tiny models on devices, and drives runners by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tiny_model import TinyModel

from llama3jit.devices.choose import make_limits, open_runner
from llama3jit.devices.interpreter import Interpreter
from llama3jit.files.gguf import open_gguf
from llama3jit.model.batch import Piece, make_batch
from llama3jit.model.build import build_plan
from llama3jit.model.config import read_config

N_CTX = 192


def opened(tiny: TinyModel, device: str = "cpu", **options: Any) -> Any:
    """A runner of 8 sequences of 192 tokens, 128 tokens a pass; threads 2 unless given. The device
    "njit" is the plan on its ops' njit faces, "cuda faces" on their cuda.jit ones, "cuda portable"
    the CUDA device without tuned kernels."""
    gguf = open_gguf(tiny.path)
    config = read_config(gguf)
    if device in ("njit", "cuda faces"):
        limits = make_limits(config, N_CTX, 8, 128)
        plan = build_plan(config, gguf.tensors, options["kv_dtype"])
        return Interpreter(gguf, config, plan, limits, device.split()[0])
    if device == "cuda portable":
        from llama3jit.devices.cuda.driver import Gpu
        from llama3jit.devices.cuda.runner import open_on_gpu

        limits = make_limits(config, options.get("n_ctx", N_CTX), 8, 128)
        plan = build_plan(config, gguf.tensors, options["kv_dtype"])
        return open_on_gpu(gguf, config, plan, limits, Gpu(0), exact=True, portable=True)
    options = {"n_ctx": N_CTX, "threads": 2, "max_sequences": 8, "max_tokens": 128} | options
    return open_runner(gguf, config, device=device, **options)


def ids_of(n: int, seed: int = 0, vocab: int = 300) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, n).tolist()


def logits_of(
    runner: Any, ids: Sequence[int], *, chunk: int = 32, blocks: Sequence[int] = (3, 0, 2)
) -> np.ndarray:
    """Logits of every token of one sequence, a chunk at a time; at most 32 rows a pass."""
    rows = []
    for first in range(0, len(ids), chunk):
        part = ids[first : first + chunk]
        table = blocks[: -(-(first + len(part)) // 64)]
        if chunk <= 32:
            batch = make_batch([Piece(part, first, table, "all")])
        else:
            batch = make_batch([Piece(part, first, table, "last")])
        rows.append(runner.forward(batch).copy())
    return np.concatenate(rows)
