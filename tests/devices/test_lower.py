"""Plans for the CPU: barriers where data flows and nowhere else, kernels, memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import MIXED, tiny_model

from kernels_cpu import TUNED
from llama3jit import ops
from llama3jit.devices.choose import make_limits
from llama3jit.devices.cpu.lower import barriers, lower, split_attention
from llama3jit.devices.cpu.runner import memory_needed
from llama3jit.files.gguf import open_gguf
from llama3jit.model.build import build_plan
from llama3jit.model.config import read_config
from llama3jit.model.plan import Row

OPTIONS = {
    "mixed": {"formats": MIXED},
    "biases": {"formats": {"*": "Q4_1"}, "biases": True, "tied": True},
    "head_dim 24": {"head_dim": 24},
    # Where no other product comes between, an old quantised h would still be at hand.
    "int8 in places": {"formats": {"*.attn_q.*": "Q4_1", "*.ffn_gate.*": "Q8_0"}},
}


def parts_of(tmp_path, **options):
    gguf = open_gguf(tiny_model(tmp_path / "tiny.gguf", **options).path)
    config = read_config(gguf)
    return config, build_plan(config, gguf.tensors)


def conflict(first, second):
    """Must `second` wait for `first`? An output may be read as well."""

    def sets(row):
        op = ops.find(row.op)
        names = [p.name for p in op.signature.parameters[: op.outputs]]
        written = {row.operands[name] for name in names}
        return written, {v for v in row.operands.values() if isinstance(v, str)}

    (writes, touches), (writes_then, touches_then) = sets(first), sets(second)
    return bool(writes & touches_then or writes_then & touches)


def check(rows, flags):
    assert len(rows) == len(flags)
    assert flags[-1]
    start = 0
    for j in range(1, len(rows)):
        # No row of this stretch may run while one that it waits for does.
        if flags[j - 1]:
            # The barrier must have been needed by what comes after it.
            assert any(conflict(row, rows[j]) for row in rows[start:j]), f"needless before row {j}"
            start = j
        for i in range(start, j):
            assert not conflict(rows[i], rows[j]), f"rows {i} and {j} may run at once"


@pytest.mark.parametrize("precision", ["fast", "exact"])
@pytest.mark.parametrize("name", OPTIONS)
def test_barriers_of_models(tmp_path, name, precision):
    lowered = lower(parts_of(tmp_path, **OPTIONS[name])[1], precision)
    check(lowered.rows, lowered.barriers)
    split = split_attention(lowered)
    check(split.rows, split.barriers)


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
ROWS = st.one_of(
    st.builds(lambda out, x: Row("add", {"out": out, "x": x}), NAMES, NAMES),
    st.builds(
        lambda out, x, w: Row("rmsnorm", {"out": out, "x": x, "weight": w, "eps": 1e-5}),
        NAMES,
        NAMES,
        NAMES,
    ),
    st.builds(lambda x, t: Row("rope", {"x": x, "turns": t}), NAMES, NAMES),
    st.builds(
        lambda xs: Row("quantize", dict(zip(("xq", "xs", "xsum", "xtotal", "x"), xs, strict=True))),
        st.lists(NAMES, min_size=5, max_size=5),
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=12))
def test_barriers_of_any_rows(rows):
    check(rows, barriers(rows))


def barrier_after(lowered, out):
    """The flags of the rows that write `out`."""
    pairs = zip(lowered.rows, lowered.barriers, strict=True)
    return [flag for row, flag in pairs if row.operands.get("out") == out]


@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_q_k_and_v_run_side_by_side(tmp_path, precision):
    lowered = lower(parts_of(tmp_path, formats={"*": "Q4_1"})[1], precision)
    kinds = [row.op for row in lowered.rows]
    matmul = "matmul_int8" if precision == "fast" else "matmul"
    q = next(i for i, row in enumerate(lowered.rows) if row.operands.get("out") == "q")
    assert kinds[q : q + 3] == [matmul] * 3
    assert lowered.barriers[q : q + 2] == [False, False]
    assert barrier_after(lowered, "gate")[0] is False  # gate and up as well
    # Of a layer: norm, quantise, q k v, ropes, append, attention, quantise, output, add, norm,
    # quantise, gate and up, swiglu, quantise, down, add. Beside the layers: five.
    assert sum(lowered.barriers) <= 2 * 16 + 5


def test_int8_activations_are_those_of_the_row(tmp_path):
    """Follow every value through both plans: what a product reads is what the plan says."""
    for options in OPTIONS.values():
        plan = parts_of(tmp_path, **options)[1]
        lowered = lower(plan, "fast")
        assert outputs_of(plan.rows, {}) == outputs_of(lowered.rows, lowered.packed)


def outputs_of(rows, packed):
    """A name for what each row but `quantize` computes, from what its operands then hold."""
    holds, results = {}, []
    for row in rows:
        op = ops.find(row.op)
        given = {key: holds.get(value, value) for key, value in row.operands.items()}
        if row.op == "quantize":
            for name in ("xq", "xs", "xsum", "xtotal"):
                holds[row.operands[name]] = ("quantised", given["x"])
            continue
        if row.op == "matmul_int8":
            kept = {given.pop(name) for name in ("xq", "xs", "xsum", "xtotal")}
            assert len(kept) == 1
            ((word, given["x"]),) = kept
            assert word == "quantised"
        if row.op.startswith("matmul"):
            given["weight"] = packed.get(given["weight"], (given["weight"],))[0]
            del given["out"]  # written whole
        results.append(
            hash((row.op.removesuffix("_int8"), row.variant, *sorted(given.items(), key=str)))
        )
        for parameter in op.signature.parameters[: op.outputs]:
            holds[row.operands[parameter.name]] = ("value", results[-1], parameter.name)
    return results


def test_tuned_kernels_are_chosen(tmp_path):
    lowered = lower(parts_of(tmp_path, formats=MIXED)[1], "fast")
    for row, unit in zip(lowered.rows, lowered.units, strict=True):
        tuned = row.op in TUNED and row.variant in TUNED[row.op][1]
        assert unit.module.startswith("kernels_cpu." if tuned else "llama3jit.ops."), row
        assert unit.variant == row.variant


@pytest.mark.parametrize(
    ("head_dim", "tuned"), [(16, True), (24, False), (256, True), (272, False)]
)
def test_attention_falls_back_by_head_dim(tmp_path, head_dim, tuned):
    plan = parts_of(tmp_path, head_dim=head_dim)[1]
    units = {unit for unit in lower(plan, "fast").units if unit.op == "attention"}
    assert {unit.module.startswith("kernels_cpu") for unit in units} == {tuned}


@pytest.mark.parametrize(("head_dim", "n_split"), [(16, 2), (24, 0)])
def test_split_attention_is_the_same_plan_but_for_attention(tmp_path, head_dim, n_split):
    """And the portable attention, which does not sum by chunks, is not split."""
    lowered = lower(parts_of(tmp_path, head_dim=head_dim)[1], "fast")
    split = split_attention(lowered)
    parts = ("attention_chunks", "attention_merge")
    kinds = [row.op for row in split.rows if row.op in parts]
    assert kinds == [*parts] * n_split
    if n_split == 0:
        assert split.rows == lowered.rows
        assert split.operands == lowered.operands
    assert {unit.module for unit in split.units if unit.op in parts} <= {
        "kernels_cpu.split_attention"
    }
    assert [unit.op for unit in split.units] == [row.op for row in split.rows]
    assert [row for row in split.rows if row.op not in parts] == [
        row for row in lowered.rows if row.op != "attention" or not n_split
    ]
    whole = [row for row in lowered.rows if row.op == "attention"]
    chunks = [row for row in split.rows if row.op == "attention_chunks"]
    merges = [row for row in split.rows if row.op == "attention_merge"]
    for one, many, merge in zip(whole, chunks, merges, strict=False):
        assert many.variant == one.variant
        both = {**many.operands, "out": merge.operands["out"]}
        assert both == {**one.operands, "sums": "chunk.sums", "weights": "chunk.weights"}
        assert {**merge.operands, "out": 0} == {
            "out": 0,
            "sums": "chunk.sums",
            "weights": "chunk.weights",
        }


def test_exact_has_no_int8(tmp_path):
    lowered = lower(parts_of(tmp_path, formats=MIXED)[1], "exact")
    assert not {row.op for row in lowered.rows} & {"matmul_int8", "quantize"}


def test_memory_needed(tmp_path):
    config, plan = parts_of(tmp_path, formats={"*": "Q8_0"})
    limits = make_limits(config, 128, 1, 32)
    assert limits.n_blocks == 2
    needed = memory_needed(lower(plan, "fast"), limits)
    # 2 layers, K and V, 2 heads of 16, 128 tokens, halves.
    assert needed["kv"] == 2 * 2 * 2 * 16 * 128 * 2
    values = 320 * 64 + 2 * (64 * 64 * 2 + 2 * 32 * 64 + 3 * 96 * 64)
    norms, table = 5 * 64 * 4, 8 * 8
    assert needed["weights"] == values * 34 // 32 + norms + table
    twice = memory_needed(lower(plan, "fast"), make_limits(config, 128, 1, 64))
    assert needed["buffers"] < twice["buffers"] <= 2 * needed["buffers"]
