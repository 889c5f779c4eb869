"""Ops that work on rows, on a GPU, against float64."""

import numpy as np
import pytest
from kernel_runs import error, int8_buffers, nans, random_weight

import kernels_cuda
from kernels_cuda.leading import LEADING, ROOM, WORDS
from llama3jit import ops
from llama3jit.ops.dequantise import rows

pytestmark = pytest.mark.gpu

SHAPES = [(1, 32), (3, 96), (2, 4096), (5, 2080), (17, 576)]


def floats(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [*SHAPES, (3, 77)])
def test_elementwise(gpu, shape):
    rng = np.random.default_rng(shape)
    a, b, bias = floats(rng, *shape), floats(rng, *shape), floats(rng, shape[1])
    assert np.array_equal(gpu.run("add", out=a, x=b)["out"], a + b)
    assert np.array_equal(gpu.run("add_bias", out=a, bias=bias)["out"], a + bias)
    found = gpu.run("swiglu", out=nans(*shape), gate=3 * a, up=b)["out"]
    gate = 3 * a.astype(np.float64)
    assert error(found, gate / (1 + np.exp(-gate)) * b) < 1e-6
    chosen = rng.integers(0, shape[0], 4).astype(np.int32)
    found = gpu.run("select_rows", out=nans(4, shape[1]), x=a, logits_rows=chosen)["out"]
    assert np.array_equal(found, a[chosen])


@pytest.mark.parametrize("shape", [*SHAPES, (3, 77)])
def test_rmsnorm(gpu, shape):
    rng = np.random.default_rng(shape)
    x, y, weight = floats(rng, *shape), floats(rng, *shape), floats(rng, shape[1])
    found = gpu.run("rmsnorm", out=nans(*shape), x=x, weight=weight, eps=1e-5)["out"]
    assert error(found, normalised(x, weight)) < 1e-6
    found = gpu.run("add_rmsnorm", x=x, out=nans(*shape), y=y, weight=weight, eps=1e-5)
    assert np.array_equal(found["x"], x + y)
    assert error(found["out"], normalised(x + y, weight)) < 1e-6


def normalised(x, weight):
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * weight


def is_int8_of(found, expected):
    """Whether int8 values and their scales are those of float64 values, up to one rounding."""
    made = int8_buffers(*expected.shape)
    ops.find("quantize").numpy(**made, x=expected.astype(np.float32))
    assert np.allclose(found["xs"], made["xs"], rtol=1e-5, atol=0)
    off = np.abs(found["xq"].astype(int) - made["xq"])
    assert off.max() <= 1
    assert (off > 0).mean() < 0.01
    sums = found["xq"].reshape(len(expected), -1, 16).sum(axis=2, dtype=np.int32)
    assert np.array_equal(found["xsum"], sums)
    blocks = sums.reshape(len(expected), -1, 2).sum(axis=2)
    assert np.array_equal(found["xtotal"], found["xs"] * blocks.astype(np.float32))


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_to_int8(gpu, shape):
    rng = np.random.default_rng(shape)
    x, y, weight = floats(rng, *shape), floats(rng, *shape), floats(rng, shape[1])
    made = int8_buffers(*shape)
    found = gpu.run("rmsnorm_quantize", **made, x=x, weight=weight, eps=1e-5)
    is_int8_of(found, normalised(x, weight))
    found = gpu.run("add_rmsnorm_quantize", x=x, **made, y=y, weight=weight, eps=1e-5)
    assert np.array_equal(found["x"], x + y)
    is_int8_of(found, normalised(x + y, weight))
    both = floats(rng, shape[0], 2, shape[1])
    gate = both[:, 0].astype(np.float64)
    found = gpu.run("swiglu_quantize", **made, gate_up=both)
    is_int8_of(found, gate / (1 + np.exp(-gate)) * both[:, 1])


def test_rope_angles(gpu):
    positions = np.array([0, 1, 77, 4095, 131071], np.int32)
    frequencies = 500000.0 ** (-np.arange(33) / 33)
    found = gpu.run(
        "rope_angles",
        turns=nans(5, 33, 2),
        positions=positions,
        inverse_frequencies=frequencies,
        magnitude=1.25,
    )["turns"]
    angles = positions[:, None] * frequencies
    expected = np.stack([np.cos(angles), np.sin(angles)], axis=2) * 1.25
    assert np.abs(found - expected).max() < 2e-7


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "half"), [(4, 2, 64, 32), (3, 1, 128, 5)]
)
def test_rope_and_caches(gpu, heads, kv_heads, head_dim, half):
    rng = np.random.default_rng(heads)
    t = 5
    qkv = floats(rng, t, heads + 2 * kv_heads, head_dim)
    turns = floats(rng, t, half, 2)
    caches = [np.full((6, kv_heads, 64, head_dim), 0x7E00, np.uint16) for _ in range(2)]
    where = {
        "positions": np.array([0, 63, 64, 130, 5], np.int32),
        "seq_of": np.array([0, 0, 1, 1, -1], np.int32),
        "block_tables": np.array([[4, 0, 1], [2, 3, 5]], np.int32),
    }
    turned = qkv.copy()
    ops.find("rope").numpy(turned[:, : heads + kv_heads], turns)
    found = gpu.run("rope", x=qkv.copy(), turns=turns)["x"]
    assert np.allclose(found[:, : heads + kv_heads], turned[:, : heads + kv_heads], atol=1e-6)
    found = gpu.run(
        "rope_append", "f16",
        q=nans(t, heads, head_dim), k_cache=caches[0], v_cache=caches[1], qkv=qkv, turns=turns,
        **where,
    )  # fmt: skip
    assert np.allclose(found["q"], turned[:, :heads], atol=1e-6)
    k = turned[:, heads : heads + kv_heads]
    v = qkv[:, heads + kv_heads :]
    check_caches(found, k, v, where, caches[0])
    given = {"k": np.ascontiguousarray(k), "v": np.ascontiguousarray(v)}
    found = gpu.run("kv_append", "f16", k_cache=caches[0], v_cache=caches[1], **given, **where)
    check_caches(found, k, v, where, caches[0])


def check_caches(found, k, v, where, before):
    for name, values in (("k_cache", k), ("v_cache", v)):
        expected = before.copy()
        for t, s in enumerate(where["seq_of"]):
            if s >= 0:
                p = where["positions"][t]
                block = where["block_tables"][s, p // 64]
                expected[block, :, p % 64] = values[t].astype(np.float16).view(np.uint16)
        a, b = (x.view(np.float16).astype(np.float64) for x in (found[name], expected))
        assert np.array_equal(np.isnan(a), np.isnan(b))
        assert np.nanmax(np.abs(a - b)) < 5e-3
        assert np.nanmean(np.abs(a - b)) < 1e-5


@pytest.mark.parametrize("variant", kernels_cuda.READABLE)
def test_embed(gpu, variant):
    rng = np.random.default_rng(1)
    weight = random_weight(rng, variant, 7, 512)
    tokens = np.array([3, 0, 6], np.int32)
    found = gpu.run("embed", variant, out=nans(3, 512), weight=weight, tokens=tokens)["out"]
    assert np.array_equal(found, rows(weight[tokens], variant))


@pytest.mark.parametrize("vocab", [65, 300, 1024, 5003, 32000, 128256])
def test_leading(gpu, vocab):
    check_leading(gpu, vocab, slice(None))


def check_leading(gpu, vocab, kinds):
    rng = np.random.default_rng(vocab)
    logits = np.stack(
        [
            floats(rng, vocab),
            3 * floats(rng, vocab),
            np.sort(floats(rng, vocab)),
            np.round(floats(rng, vocab), 1),  # ties
            np.where(np.arange(vocab) == vocab // 3, 40, floats(rng, vocab)),
            np.where(np.arange(vocab) == vocab - 1, np.nan, floats(rng, vocab)),
            np.where(np.arange(vocab) == 5, -np.inf, floats(rng, vocab)),
        ]
    ).astype(np.float32)
    found = gpu.run("leading", leading=np.full((len(logits), WORDS), 99, np.int32), logits=logits)[
        "leading"
    ]
    for row, truth in zip(found, logits, strict=True):
        if not np.isfinite(truth).all():
            assert row[0] == -1
            continue
        if row[0] > ROOM:  # so many have the same value
            assert (truth >= np.sort(truth)[-LEADING]).sum() > LEADING
            continue
        ids = np.argsort(-truth, kind="stable")[:LEADING]
        assert row[0] >= LEADING
        assert np.array_equal(row[1 : 1 + LEADING], ids)
        assert np.array_equal(row[1 + LEADING :].view(np.float32), truth[ids])
