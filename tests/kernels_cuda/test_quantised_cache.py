"""The quantised KV cache on a GPU: what is written, bit for bit, and what attention makes of it."""

import numpy as np
import pytest
from kernel_runs import error, nans
from test_cuda_attention import expected_of

from llama3jit import ops
from llama3jit.ops.kv_arrays import quantised, values_of
from llama3jit.ops.kv_dtypes import QUANT_BYTES

pytestmark = pytest.mark.gpu

KINDS = list(QUANT_BYTES)
TOKENS = 64


def empty_caches(kind, n_blocks, kv_heads, head_dim):
    lines = head_dim // 32 * (QUANT_BYTES[kind] + 2)
    return [np.full((n_blocks, kv_heads, lines, TOKENS), 0xFF, np.uint8) for _ in "kv"]


def parts_of(cache, kind, head_dim):
    """Views: quants u8[blocks, heads, tokens, groups, n], scales u16[blocks, heads, tokens,
    groups]."""
    flat = cache.reshape(*cache.shape[:2], -1)
    groups, n = head_dim // 32, QUANT_BYTES[kind]
    cut = TOKENS * groups * n
    quants = flat[..., :cut].reshape(*cache.shape[:2], TOKENS, groups, n)
    return quants, flat[..., cut:].view(np.uint16).reshape(*cache.shape[:2], TOKENS, groups)


def filled(gpu, kind, rng, contexts, kv_heads, head_dim, odd=False):
    """Caches with random tokens in them, as the kernel writes them; the tokens, and the tables."""
    widths = [-(-n // TOKENS) for n in contexts]
    order = rng.permutation(sum(widths) + 2)
    tables = np.zeros((len(contexts), max(widths) + 1), np.int32)
    used = 0
    for s, width in enumerate(widths):
        tables[s, :width] = order[used : used + width]
        used += width
    seq_of = np.array([s for s, n in enumerate(contexts) for _ in range(n)] + [-1], np.int32)
    positions = np.array([i for n in contexts for i in range(n)] + [2], np.int32)
    k, v = (rng.standard_normal((len(seq_of), kv_heads, head_dim)).astype(np.float32) for _ in "kv")
    if odd:
        k[0], k[1, 0, 3], v[0, 0, 40], v[1, 0, 3:7] = 0, np.nan, np.inf, -9.5
    caches = empty_caches(kind, len(order), kv_heads, head_dim)
    found = gpu.run(
        "kv_append", kind, k_cache=caches[0], v_cache=caches[1], k=k, v=v, positions=positions,
        seq_of=seq_of, block_tables=tables,
    )  # fmt: skip
    return [found["k_cache"], found["v_cache"]], (k, v), (tables, seq_of, positions)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("kv_heads", "head_dim"), [(2, 64), (3, 128), (1, 96)])
def test_what_is_written(gpu, kind, kv_heads, head_dim):
    rng = np.random.default_rng(head_dim)
    caches, given, where = filled(gpu, kind, rng, (70, 5), kv_heads, head_dim, odd=True)
    tables, seq_of, positions = (array[:-1] if array.ndim == 1 else array for array in where)
    blocks, at = tables[seq_of, positions // TOKENS], positions % TOKENS
    for cache, x in zip(caches, given, strict=True):
        expected = np.full_like(cache, 0xFF)
        quants, scales = parts_of(expected, kind, head_dim)
        quants[blocks, :, at], scales[blocks, :, at] = quantised(x[:-1], kind)
        found, expected = (parts_of(array, kind, head_dim) for array in (cache, expected))
        assert np.array_equal(found[0], expected[0])
        bits, wanted = (scale.view(np.float16) for scale in (found[1], expected[1]))
        assert np.array_equal(bits, wanted, equal_nan=True)


def as_floats(cache, kind, head_dim):
    """float64 [blocks, heads, tokens, head_dim]"""
    quants, scales = parts_of(cache, kind, head_dim)
    return values_of(quants, scales, kind).reshape(*cache.shape[:2], TOKENS, head_dim)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("contexts", "heads", "kv_heads", "head_dim", "window"),
    [((1,), 4, 4, 64, 0), ((64, 65, 7), 9, 3, 64, 0), ((300, 129), 32, 8, 128, 100)],
)
def test_attention(gpu, kind, contexts, heads, kv_heads, head_dim, window):
    rng = np.random.default_rng(heads)
    caches, _, (tables, seq_all, positions_all) = filled(
        gpu, kind, rng, contexts, kv_heads, head_dim
    )
    floats = [as_floats(cache, kind, head_dim) for cache in caches]
    scale = 1 / np.sqrt(head_dim)
    for seq_of, positions in (
        (np.arange(len(contexts), dtype=np.int32), np.array(contexts, np.int32) - 1),
        (seq_all, positions_all),
    ):
        q = rng.standard_normal((len(seq_of), heads, head_dim)).astype(np.float32)
        given = {
            "q": q, "k_cache": caches[0], "v_cache": caches[1], "positions": positions,
            "seq_of": seq_of, "block_tables": tables, "scale": scale, "window": window,
        }  # fmt: skip
        expected = expected_of(q, floats, tables, seq_of, positions, scale, window)
        found = gpu.run("attention", kind, out=nans(*q.shape), **given)["out"]
        assert error(found, expected) < 2e-3
        t, chunks = len(q), tables.shape[1]
        sums, weights = nans(t, heads, chunks, head_dim), nans(t, heads, chunks, 2)
        parts = gpu.run("attention_chunks", kind, sums=sums, weights=weights, **given)
        given = {name: parts[name] for name in ("sums", "weights")}
        found = gpu.run("attention_merge", out=nans(t, heads, head_dim), **given)["out"]
        assert error(found, expected) < 2e-3


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "half"), [(4, 2, 64, 32), (3, 1, 128, 5)]
)
def test_turns(gpu, heads, kv_heads, head_dim, half):
    rng = np.random.default_rng(heads)
    t = 5
    qkv = rng.standard_normal((t, heads + 2 * kv_heads, head_dim)).astype(np.float32)
    turns = rng.standard_normal((t, half, 2)).astype(np.float32)
    x = qkv.copy()
    ops.find("hadamard").numpy(x)
    found = gpu.run("hadamard", x=qkv.copy())["x"]
    assert error(found, x) < 1e-6
    x = qkv.copy()
    ops.find("rope").numpy(x[:, : heads + kv_heads], turns)
    ops.find("hadamard").numpy(x)
    names = {"q": heads, "k": kv_heads, "v": kv_heads}
    made = {name: nans(t, n, head_dim) for name, n in names.items()}
    found = gpu.run("rope_turn", **made, qkv=qkv, turns=turns)
    assert error(np.concatenate([found[name] for name in names], axis=1), x) < 1e-6
