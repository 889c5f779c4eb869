"""The CUDA device without a GPU: buckets, places, uploads, graphs and errors, on a device that runs
every kernel as the op's NumPy reference."""

import numpy as np
import pytest
from driving import ids_of, logits_of, opened
from fake_gpu import FakeGpu, kernels
from float64_llama import forward, mean_kl
from tiny_model import MIXED, tiny_model

from llama3jit.compile.cuda.units import Chip, is_tuned, signature_of
from llama3jit.devices.choose import make_limits
from llama3jit.devices.cuda.arrange import MADE, arranged
from llama3jit.devices.cuda.lower import Counts, Ways, fit_limits, lower, lower_all
from llama3jit.devices.cuda.memory import check_memory, place_operands
from llama3jit.devices.cuda.runner import CudaRunner
from llama3jit.devices.cuda.shapes import Shape, nbytes_of, shape_of, sizes_of
from llama3jit.devices.cuda.timing import timed_rows
from llama3jit.errors import (
    CancelledError,
    DeviceError,
    InvalidArgumentError,
    MemoryLimitError,
)
from llama3jit.files.gguf import open_gguf
from llama3jit.model.batch import Piece, make_batch
from llama3jit.model.build import build_plan
from llama3jit.model.config import read_config

MODELS = {
    "mixed": {"formats": MIXED},
    "tied": {"formats": {"token_embd.weight": "Q8_0", "*": "Q4_K"}, "tied": True, "biases": True},
}
SIZES = {"tied": {"n_embd": 256, "n_ff": 512, "vocab": 300}}


PORTABLE, EXACT, FAST = (Ways(Chip((9, 0), 132), *way) for way in ((True, True), (True,), ()))


def on_fake(tiny, gpu=None, kv_dtype="f32", n_ctx=192, max_tokens=128, ways=PORTABLE):
    gguf = open_gguf(tiny.path)
    config = read_config(gguf)
    plan = build_plan(config, gguf.tensors, kv_dtype)
    limits = fit_limits(plan, ways, make_limits(config, n_ctx, 8, max_tokens))
    return CudaRunner(gguf, config, plan, limits, gpu or FakeGpu(), kernels(), ways=ways)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        name: tiny_model(folder / f"{i}.gguf", seed=i, **options, **SIZES.get(name, {}))
        for i, (name, options) in enumerate(MODELS.items())
    }


@pytest.fixture(scope="module")
def runner(models):
    return on_fake(models["mixed"])


def worst(found, truth):
    assert np.isfinite(found).all()
    return np.abs(found - truth).max() / truth.std()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_logits(models, name, chunk):
    """Chunks of 7 fill a batch up to 8, and what fills it up must not show."""
    ids = ids_of(70)
    found = logits_of(on_fake(models[name]), ids, chunk=chunk)
    assert worst(found, forward(models[name], ids)) < 1e-4


# Models that tuned kernels take: heads of 64, widths that blocks of 256 divide.
WIDE = {"n_embd": 256, "n_ff": 512, "n_head": 4, "n_head_kv": 2, "head_dim": 64, "vocab": 304}
TUNED_MODELS = {
    "one format": {"formats": {"*": "Q4_0"}},
    "K-quants": {"formats": {"*": "Q4_K", "output.weight": "Q6_K"}, "biases": True},
    "v has its own": {"formats": {"*.attn_v.weight": "Q8_0", "*": "Q4_0"}, "tied": True},
    "halves": {"formats": {"*": "F16"}},
    "half tuned": {"formats": {"*.ffn_up.weight": "Q5_0", "*.ffn_gate.weight": "Q8_0"}},
    "7 heads to a KV head": {"n_head": 7, "n_head_kv": 1, "formats": {"*": "Q8_0"}},
}


@pytest.mark.parametrize("name", TUNED_MODELS)
@pytest.mark.parametrize("chunk", [1, 7, 32])
def test_tuned_kernels(tmp_path, name, chunk):
    tiny = tiny_model(tmp_path / "m.gguf", seed=2, **{**WIDE, **TUNED_MODELS[name]})
    ids = ids_of(70)
    gpu = FakeGpu()
    runner = on_fake(tiny, gpu, "f16", ways=FAST)
    found = logits_of(runner, ids, chunk=chunk)
    assert mean_kl(forward(tiny, ids, "f16"), found) < 5e-3
    used = {unit.op for unit in gpu.launches if is_tuned(unit)}
    alone = {"attention_chunks", "matmul" if name == "halves" else "matmul_int8"}
    assert {"embed", *(alone if chunk == 1 else {"attention", "matmul_halves"})} <= used


CACHING = ("attention", "attention_chunks", "hadamard", "kv_append", "rope_append", "rope_turn")


@pytest.mark.parametrize("ways", [PORTABLE, EXACT, FAST], ids=["portable", "exact", "fast"])
@pytest.mark.parametrize("kv_dtype", ["q8_0", "q4_0"])
def test_a_quantised_cache(tmp_path, kv_dtype, ways):
    """Without rounded activations as the CPU has it, else on tuned kernels."""
    tiny = tiny_model(tmp_path / "m.gguf", seed=2, **{**WIDE, "formats": {"*": "Q8_0"}})
    ids = ids_of(70)
    gpu = FakeGpu()
    found = logits_of(on_fake(tiny, gpu, kv_dtype, ways=ways), ids, chunk=7)
    expected = logits_of(opened(tiny, "reference", kv_dtype=kv_dtype), ids)
    truth = logits_of(opened(tiny, "reference", kv_dtype="f32"), ids)
    loss = mean_kl(truth, expected)
    if ways is FAST:
        assert mean_kl(truth, found) < 1.5 * loss + 5e-3
    else:
        assert mean_kl(expected, found) < 0.1 * loss
    cached = {unit.op: is_tuned(unit) for unit in gpu.launches if unit.op in CACHING}
    fast = ["attention", "hadamard", "kv_append", "rope_turn"]
    assert sorted(cached) == (fast if ways is FAST else ["attention", "hadamard", "kv_append"])
    tuned = {op for op, is_tuned in cached.items() if is_tuned}
    assert tuned == {PORTABLE: set(), EXACT: {"hadamard"}, FAST: set(fast)}[ways]


@pytest.mark.parametrize("name", ["one format", "halves"])
def test_tuned_kernels_on_tokens_of_several_sequences(tmp_path, name):
    """First their prompts together, then a token of each, for which there are other kernels."""
    tiny = tiny_model(tmp_path / "m.gguf", seed=2, **{**WIDE, **TUNED_MODELS[name]})
    prompts = [ids_of(n, seed=n) for n in (3, 7, 12, 20, 1)]
    gpu = FakeGpu()
    runner = on_fake(tiny, gpu, "f16", ways=FAST)
    for part, logits in ((slice(-1), "none"), (slice(-1, None), "last")):
        pieces = [
            Piece(ids[part], len(ids) - 1 if logits == "last" else 0, [s], logits)
            for s, ids in enumerate(prompts)
            if ids[part]
        ]
        found = runner.forward(make_batch(pieces))
    truth = np.stack([forward(tiny, ids, "f16")[-1] for ids in prompts])
    assert mean_kl(truth, found) < 5e-3


@pytest.mark.parametrize("ways", [EXACT, FAST], ids=["exact", "fast"])
def test_the_largest_logits_are_those_of_the_whole_rows(tmp_path, ways):
    tiny = tiny_model(tmp_path / "m.gguf", seed=2, **WIDE)
    gpu = FakeGpu()
    runner = on_fake(tiny, gpu, "f16", ways=ways)
    batch = make_batch([Piece(ids_of(n, seed=n), 0, [s]) for s, n in enumerate((3, 20, 7))])
    rows = runner.forward(batch).copy()
    found = runner.leading(batch)
    assert gpu.launches[-1].op == "leading"
    order = np.argsort(-rows, axis=1, kind="stable")[:, : runner.n_leading]
    assert np.array_equal(found.ids, order)
    assert np.array_equal(found.logits, np.take_along_axis(rows, order, axis=1))
    assert np.array_equal(runner.forward(batch), rows), "the graphs of one shape are two"


def test_without_leading_logits_the_engine_takes_whole_rows(tmp_path):
    tiny = tiny_model(tmp_path / "m.gguf", seed=2, **{**WIDE, "vocab": 64})
    assert on_fake(tiny, ways=FAST).n_leading == 0
    tiny = tiny_model(tmp_path / "n.gguf", seed=2, **WIDE)
    assert on_fake(tiny, ways=PORTABLE).n_leading == 0
    gpu = FakeGpu()
    runner = on_fake(tiny, gpu, "f16", ways=FAST)
    batch = make_batch([Piece([1, 2], 0, [0])])
    rows = runner.forward(batch).copy()
    gpu.leading = lambda unit, values, *_: values["leading"].fill(-1)
    assert runner.leading(batch) is None
    launches = len(gpu.launches)
    assert np.array_equal(runner.forward(batch), rows)
    assert len(gpu.launches) == launches, "the rows were still there"
    assert np.array_equal(runner.forward(batch), rows)
    assert len(gpu.launches) > launches


def ops_of(tiny, counts, ways=FAST):
    gguf = open_gguf(tiny.path)
    plan = build_plan(read_config(gguf), gguf.tensors, "f16")
    return [row.op for row in lower(plan, ways, counts).rows]


def test_rows_become_one(tmp_path):
    tiny = tiny_model(tmp_path / "m.gguf", **WIDE, formats={"*": "Q4_0"})
    attention = ["matmul_int8", "rope_append", "attention_chunks"]
    feed = ["matmul_int8", "add_rmsnorm_quantize", "matmul_int8", "swiglu_quantize", "matmul_int8"]
    assert ops_of(tiny, Counts(1, 1)) == [
        *("embed", "rope_angles", "rmsnorm_quantize"),
        *(*attention, "attention_merge_quantize", *feed, "add_rmsnorm_quantize"),
        *(*attention, "attention_merge", "select_rows", "select_rows", "quantize", *feed),
        *("add_rmsnorm_quantize", "matmul_int8"),
    ]
    assert ops_of(tiny, Counts(1, 0))[-1] == "rope_append"
    exact = ops_of(tiny, Counts(1, 1), EXACT)
    assert exact == ops_of(tiny, Counts(1, 1), PORTABLE)


def test_limits_are_those_of_the_tuned_kernels(tmp_path, models):
    tiny = tiny_model(tmp_path / "m.gguf", **WIDE, formats={"*": "Q4_0"})
    gguf = open_gguf(tiny.path)
    config = read_config(gguf)
    plan = build_plan(config, gguf.tensors, "f16")
    limits = make_limits(config, 192, 8, 512)
    assert fit_limits(plan, EXACT, limits) == limits
    assert fit_limits(plan, FAST, limits).max_tokens == 512


def test_a_cache_of_halves(models):
    ids = ids_of(70)
    found = logits_of(on_fake(models["mixed"], kv_dtype="f16"), ids)
    assert worst(found, forward(models["mixed"], ids, "f16")) < 2e-3


def test_a_ragged_batch_is_its_sequences_alone(models, runner):
    prompts = [ids_of(n, seed=n) for n in (5, 70, 1)]
    blocks = [[4], [6, 1], [0]]
    pieces = [Piece(p, 0, b, "all") for p, b in zip(prompts, blocks, strict=True)]
    together = runner.forward(make_batch(pieces)).copy()
    alone = np.concatenate([forward(models["mixed"], ids) for ids in prompts])
    assert worst(together, alone) < 1e-4


def test_decoding_beside_a_prompt(models, runner):
    ids, other = ids_of(66, seed=8), ids_of(20, seed=9)
    runner.forward(make_batch([Piece(ids[:64], 0, [5], "none")]))
    batch = make_batch([Piece(ids[64:65], 64, [5, 2]), Piece(other, 0, [7])])
    found = runner.forward(batch).copy()
    truth = np.stack([forward(models["mixed"], x)[-1] for x in (ids[:65], other)])
    assert worst(found, truth) < 1e-4


def test_a_graph_for_each_shape_once(models):
    gpu = FakeGpu()
    runner = on_fake(models["mixed"], gpu)
    for n in (3, 4, 5, 3, 8):
        runner.forward(make_batch([Piece(ids_of(n), 0, [0], "last")]))
    assert gpu.captures == 2  # 4 tokens and 8


def test_a_pass_without_logits_stops_at_the_cache(models):
    gpu = FakeGpu()
    runner = on_fake(models["mixed"], gpu)
    assert runner.forward(make_batch([Piece(ids_of(5), 0, [1], "none")])).shape == (0, 300)
    assert gpu.launches[-1].op == "kv_append"
    without = len(gpu.launches)
    runner.forward(make_batch([Piece(ids_of(5), 0, [1], "last")]))
    assert len(gpu.launches) > 2 * without


def test_shapes(models):
    config = read_config(open_gguf(models["mixed"].path))
    limits = make_limits(config, 512, 6, 100)
    assert shape_of(limits, 1, 1, 1) == Shape(1, 1, 1, 1)
    assert shape_of(limits, 5, 0, 2) == Shape(8, 0, 6, 4)
    assert shape_of(limits, 65, 33, 5) == Shape(100, 64, 6, 8)


def test_places_do_not_overlap(models):
    gguf = open_gguf(models["mixed"].path)
    config = read_config(gguf)
    plan = build_plan(config, gguf.tensors)
    limits = make_limits(config, 192, 8, 128)
    places, used = place_operands(lower_all(plan, FAST, limits), limits)
    for use in ("weights", "kv"):
        total = used[use]
        inside = sorted((p.offset, p.nbytes) for p in places.values() if p.use == use)
        ends = [offset + nbytes for offset, nbytes in inside]
        assert all(
            end <= offset for end, (offset, _) in zip(ends, [*inside[1:], (total, 0)], strict=True)
        )
        assert all(offset % 256 == 0 for offset, _ in inside)
    assert used["kv"] == 2 * 2 * limits.n_blocks * 2 * 64 * 16 * 2  # K, V; layers; heads; f16


@pytest.mark.parametrize("name", TUNED_MODELS)
@pytest.mark.parametrize("ways", [PORTABLE, FAST], ids=["portable", "fast"])
def test_buffers_share_memory_but_not_what_they_hold(tmp_path, name, ways):
    """A row finds what was last written to each buffer that it reads."""
    tiny = tiny_model(tmp_path / "m.gguf", **{**WIDE, **TUNED_MODELS[name], "n_layer": 2})
    gguf = open_gguf(tiny.path)
    config = read_config(gguf)
    plan = build_plan(config, gguf.tensors, "q8_0")
    limits = fit_limits(plan, ways, make_limits(config, 512, 8, 256))
    arena = lower_all(plan, ways, limits).arena
    for n_tokens, n_rows, alone in [(1, 1, 0), (8, 8, 1), (32, 32, 1), (256, 1, 0), (256, 0, 0)]:
        shape = Shape(n_tokens, n_rows, min(n_tokens, 8), 8, bool(alone))
        sizes = sizes_of(shape, limits)
        lowered = lower(plan, ways, Counts(n_tokens, n_rows, bool(alone), bool(n_rows), 8))
        offsets, total = arranged(lowered, sizes)
        assert total <= arena
        nbytes = {n: nbytes_of(lowered.operands[n], sizes) for n in offsets}
        assert total < sum(nbytes.values())
        written: dict[str, int] = {}
        for i, row in enumerate(lowered.rows):
            signature = signature_of(row.op)
            arrays = [p.name for p in signature.parameters if p.is_array]
            for parameter in arrays:
                operand = row.operands[parameter]
                if operand in offsets and parameter not in MADE.get(row.op, ()):
                    assert operand in written, f"{row.op} reads {operand}, which nothing wrote"
            for parameter in arrays:
                operand = row.operands[parameter]
                if operand in offsets and not overlaps(operand, row, arrays, offsets, nbytes):
                    low, high = offsets[operand], offsets[operand] + nbytes[operand]
                    if parameter in MADE.get(row.op, ()):
                        for other in list(written):
                            if offsets[other] < high and low < offsets[other] + nbytes[other]:
                                del written[other]
                        written[operand] = i
        for kept in ("logits", "leading") if n_rows and ways is FAST else ():
            assert kept in written


def overlaps(operand, row, arrays, offsets, nbytes):
    """Whether a row's operand shares a byte with another of the row: never."""
    for parameter in arrays:
        other = row.operands[parameter]
        if other in offsets and other != operand:
            low, high = offsets[other], offsets[other] + nbytes[other]
            assert high <= offsets[operand] or offsets[operand] + nbytes[operand] <= low
    return False


def test_too_little_memory_says_what_would_fit(models):
    config = read_config(open_gguf(models["mixed"].path))
    limits = make_limits(config, 512, 1, 128)
    used = {"weights": 300 * 2**20, "kv": limits.n_blocks * 2**20, "buffers": 2**20}
    check_memory(used, limits, 2**30, "a card")
    with pytest.raises(
        MemoryLimitError,
        match=r"needs 501 MiB .*weights 300 MiB, kv 8 MiB.*500 MiB are free; "
        r"n_ctx=448 in place of 512 would fit",
    ):
        check_memory(used, limits, 500 * 2**20, "a card")
    with pytest.raises(MemoryLimitError, match="a quantisation of 199 MiB or less would fit"):
        check_memory(used, limits, 400 * 2**20, "a card")
    with pytest.raises(MemoryLimitError, match="no model of this shape fits; use device='cpu'"):
        check_memory(used, limits, 10 * 2**20, "a card")


def test_an_error_of_the_device_ends_it(models):
    gpu = FakeGpu()
    runner = on_fake(models["mixed"], gpu)
    batch = make_batch([Piece(ids_of(5), 0, [1])])
    runner.forward(batch)
    gpu.broken = True
    with pytest.raises(
        DeviceError, match=r"ILLEGAL_ADDRESS; load the model again, or use device='cpu'"
    ):
        runner.forward(batch)
    gpu.broken = False
    with pytest.raises(DeviceError, match="ILLEGAL_ADDRESS; load the model again"):
        runner.forward(batch)
    runner.close()
    assert gpu.closed
    with pytest.raises(DeviceError, match="the model is closed"):
        runner.forward(batch)


def test_cancel(runner):
    batch = make_batch([Piece(ids_of(5), 0, [1])])
    runner.cancel()
    with pytest.raises(CancelledError):
        runner.forward(batch)
    assert runner.forward(batch).shape == (1, 300)
    runner.cancel()
    runner.begin()
    assert runner.forward(batch).shape == (1, 300)


def test_a_bad_batch_is_refused_and_does_no_harm(runner):
    with pytest.raises(InvalidArgumentError, match="KV block 99"):
        runner.forward(make_batch([Piece(ids_of(5), 0, [99])]))
    assert runner.forward(make_batch([Piece(ids_of(5), 0, [1])])).shape == (1, 300)


def test_a_failed_load_closes_the_device(models, monkeypatch):
    gpu = FakeGpu()
    monkeypatch.setattr(gpu, "synchronize", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        on_fake(models["mixed"], gpu)
    assert gpu.closed


@pytest.mark.parametrize("ways", [PORTABLE, FAST], ids=["portable", "fast"])
def test_the_rows_of_a_pass_are_timed(tmp_path, ways):
    tiny = tiny_model(tmp_path / "m.gguf", seed=2, **{**WIDE, "formats": {"*": "Q4_0"}})
    runner = on_fake(tiny, FakeGpu(), "f16", ways=ways)
    runner.forward(make_batch([Piece(ids_of(20), 0, [3])]))
    batch = make_batch([Piece([7], 20, [3])])
    before = runner.forward(batch).copy()
    rows, whole = timed_rows(runner, batch, 2)
    lowered = runner.lower(shape_of(runner.limits, 1, 1, 1))
    assert [row.name.split()[0] for row in rows] == [row.op for row in lowered.rows]
    assert whole == 1e-3
    total = sum(row.seconds for row in rows)
    assert 10 <= round(total / 1e-3, 6) <= len({row.name + row.sizes for row in rows})
    products = [row for row in rows if row.name.startswith("matmul")]
    with open_gguf(tiny.path) as gguf:
        matrices = [t for t in gguf.tensors.values() if len(t.shape) == 2][1:]
    assert sum(row.operations for row in products) == sum(
        2 * n * k for n, k in (t.shape for t in matrices)
    )
    assert np.array_equal(runner.forward(batch), before)
