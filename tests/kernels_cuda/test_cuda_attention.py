"""Attention on a GPU, against float64."""

import numpy as np
import pytest
from kernel_runs import error, int8_buffers, nans
from test_rows import is_int8_of

pytestmark = pytest.mark.gpu

CASES = [
    # (context of each sequence), heads, KV heads, head_dim, window
    ((1,), 4, 4, 64, 0),
    ((64, 65, 7), 9, 3, 64, 0),
    ((1000, 129), 32, 8, 128, 0),
    ((300,), 14, 2, 128, 100),
    ((200, 1), 16, 1, 64, 64),
]


def paged(rng, contexts, kv_heads, head_dim):
    """Caches in which blocks lie in any order, NaN where there is no token."""
    widths = [-(-n // 64) for n in contexts]
    order = rng.permutation(sum(widths) + 2)
    tables = np.zeros((len(contexts), max(widths) + 1), np.int32)
    caches = [np.full((len(order), kv_heads, 64, head_dim), np.nan, np.float16) for _ in "kv"]
    used = 0
    for s, (n, width) in enumerate(zip(contexts, widths, strict=True)):
        tables[s, :width] = order[used : used + width]
        used += width
        for cache in caches:
            for j in range(n):
                cache[tables[s, j // 64], :, j % 64] = rng.standard_normal((kv_heads, head_dim))
    return caches, tables


def expected_of(q, caches, tables, seq_of, positions, scale, window):
    group = q.shape[1] // caches[0].shape[1]
    out = np.zeros(q.shape)
    for t, (s, last) in enumerate(zip(seq_of, positions, strict=True)):
        if s < 0:
            continue
        seen = np.arange(max(0, last - window + 1) if window else 0, last + 1)
        k, v = (c[tables[s, seen // 64], :, seen % 64].astype(np.float64) for c in caches)
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        scores = np.einsum("hd,jhd->hj", q[t].astype(np.float64), k) * scale
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[t] = np.einsum("hj,jhd->hd", weights / weights.sum(axis=1, keepdims=True), v)
    return out


@pytest.mark.parametrize(("contexts", "heads", "kv_heads", "head_dim", "window"), CASES)
def test_decode(gpu, contexts, heads, kv_heads, head_dim, window):
    rng = np.random.default_rng(len(contexts) + heads)
    caches, tables = paged(rng, contexts, kv_heads, head_dim)
    seq_of = np.array([*range(len(contexts)), -1], np.int32)
    positions = np.array([*(n - 1 for n in contexts), 3], np.int32)
    t, chunks = len(seq_of), max(-(-n // 64) for n in contexts) + 1
    q = rng.standard_normal((t, heads, head_dim)).astype(np.float32)
    scale = 1 / np.sqrt(head_dim)
    k_cache, v_cache = (c.view(np.uint16) for c in caches)
    parts = gpu.run(
        "attention_chunks", "f16",
        sums=nans(t + 1, heads, chunks, head_dim), weights=nans(t + 1, heads, chunks, 2), q=q,
        k_cache=k_cache, v_cache=v_cache, positions=positions, seq_of=seq_of,
        block_tables=tables, scale=scale, window=window,
    )  # fmt: skip
    given = {name: parts[name] for name in ("sums", "weights")}
    found = gpu.run("attention_merge", out=nans(t, heads, head_dim), **given)["out"]
    rounded = q.astype(np.float16)
    expected = expected_of(rounded, caches, tables, seq_of, positions, scale, window)
    assert error(found, expected) < 2e-6
    wide = expected.reshape(t, -1)
    made = int8_buffers(*wide.shape)
    found = gpu.run("attention_merge_quantize", **made, **given)
    assert not found["xs"][-1].any()  # a padded token sees nothing
    kept = {name: array[:-1] for name, array in found.items() if name in made}
    is_int8_of(kept, wide[:-1])


@pytest.mark.parametrize(
    ("pieces", "heads", "kv_heads", "head_dim", "window"),
    [
        # (first position, how many tokens) of each sequence
        (((0, 1),), 4, 4, 64, 0),
        (((0, 200),), 4, 2, 128, 0),
        (((100, 64), (0, 7), (300, 1)), 9, 3, 64, 0),
        (((0, 65), (63, 130)), 8, 1, 128, 100),
        (((500, 3), (0, 64)), 2, 2, 64, 64),
    ],
)
def test_many_tokens(gpu, pieces, heads, kv_heads, head_dim, window):
    rng = np.random.default_rng(heads + len(pieces))
    caches, tables = paged(rng, [first + n for first, n in pieces], kv_heads, head_dim)
    seq_of = np.array([s for s, (_, n) in enumerate(pieces) for _ in range(n)] + [-1], np.int32)
    positions = np.array([first + i for first, n in pieces for i in range(n)] + [0], np.int32)
    q = rng.standard_normal((len(seq_of), heads, head_dim)).astype(np.float32)
    scale = 1 / np.sqrt(head_dim)
    k_cache, v_cache = (c.view(np.uint16) for c in caches)
    found = gpu.run(
        "attention", "f16",
        out=nans(*q.shape), q=q, k_cache=k_cache, v_cache=v_cache, positions=positions,
        seq_of=seq_of, block_tables=tables, scale=scale, window=window,
    )["out"]  # fmt: skip
    expected = expected_of(q, caches, tables, seq_of, positions, scale, window)
    assert not found[-1].any()
    # Queries and weights are rounded to halves.
    assert error(found, expected) < 1e-3
