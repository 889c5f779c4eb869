"""Tensors to a plan: what is missing, wrong or left over is named; what the rows are."""

import dataclasses

import numpy as np
import pytest
from gguf_writer import write_gguf
from tiny_model import MIXED, tiny_model

from llama3jit import ops
from llama3jit.errors import InvalidArgumentError, ModelFormatError, UnsupportedError
from llama3jit.files.formats import FORMATS
from llama3jit.files.gguf import open_gguf
from llama3jit.model import weights
from llama3jit.model.build import build_plan
from llama3jit.model.config import read_config
from llama3jit.model.plan import format_plan


@dataclasses.dataclass
class Tensor:
    shape: tuple
    format: object = FORMATS["F32"]
    ggml_type: int = 0


def opened(tmp_path, **options):
    gguf = open_gguf(tiny_model(tmp_path / "tiny.gguf", **options).path)
    return read_config(gguf), dict(gguf.tensors)


@pytest.fixture
def parts(tmp_path):
    return opened(tmp_path)


def ops_of(plan):
    return [f"{row.op}.{row.variant}".rstrip(".") for row in plan.rows]


def test_the_rows_of_a_layer(tmp_path):
    config, tensors = opened(tmp_path, formats=MIXED)
    plan = build_plan(config, tensors, "f16")
    attention = [
        "rmsnorm", "matmul.q4_0", "matmul.q8_0", "matmul.f16", "rope", "rope", "kv_append.f16",
        "attention.f16",
    ]  # fmt: skip
    feed_forward = [
        "matmul.q4_1", "add", "rmsnorm", "matmul.q4_1", "matmul.q4_0", "swiglu", "matmul.q8_0",
        "add",
    ]  # fmt: skip
    assert ops_of(plan) == [
        "embed.q8_0",
        "rope_angles",
        *attention,
        *feed_forward,
        *attention,
        "select_rows",
        "select_rows",
        *feed_forward,
        "rmsnorm",
        "matmul.bf16",
    ]


@pytest.mark.parametrize(("kv_dtype", "lines"), [("q8_0", 3 * 34), ("q4_0", 3 * 18)])
def test_a_quantised_cache(tmp_path, kv_dtype, lines):
    """Heads are turned before they are kept, queries before they meet them, the result back."""
    config, tensors = opened(tmp_path, n_layer=1, head_dim=96, n_head=2, n_head_kv=1)
    plan = build_plan(config, tensors, kv_dtype)
    plain = build_plan(config, tensors, "f16")
    names = [f"{row.op} {row.operands.get('x', '')}".strip() for row in plan.rows]
    first = names.index("rope k") + 1
    turns = ["hadamard q", "hadamard k", "hadamard v", "kv_append", "attention"]
    assert names[first : first + 6] == [*turns, "hadamard attended"]
    assert len(plan.rows) == len(plain.rows) + 4
    for name in ("blk.0.k_cache", "blk.0.v_cache"):
        assert plan.operands[name].shape == ("n_blocks", 1, lines, 64)
        assert plan.operands[name].dtype == "u8"


@pytest.mark.parametrize("kv_dtype", ["q8_0", "q4_0"])
@pytest.mark.parametrize("head_dim", [16, 80, 100])
def test_a_head_that_a_quantised_cache_cannot_hold(tmp_path, kv_dtype, head_dim):
    config, tensors = opened(tmp_path, head_dim=head_dim)
    with pytest.raises(InvalidArgumentError) as caught:
        build_plan(config, tensors, kv_dtype)
    assert f"kv_dtype {kv_dtype} " in str(caught.value)
    assert f"head_dim is {head_dim}" in str(caught.value)
    assert "use f16 or f32" in str(caught.value)


def test_every_row_gives_every_parameter(parts):
    plan = build_plan(*parts, "f32")
    for row in plan.rows:
        signature = ops.find(row.op).signature
        assert set(row.operands) == {p.name for p in signature.parameters if not p.is_function}
        for p in signature.parameters:
            if p.is_array:
                assert row.operands[p.name] in plan.operands


def test_a_tied_output_reads_the_embedding(tmp_path):
    config, tensors = opened(tmp_path, tied=True, formats={"token_embd.weight": "Q8_0"})
    head = build_plan(config, tensors).rows[-1]
    assert (head.op, head.variant, head.operands["weight"]) == (
        "matmul",
        "q8_0",
        "token_embd.weight",
    )


def test_biases_are_added_where_there_are_some(tmp_path):
    config, tensors = opened(tmp_path, biases=True)
    rows = [row for row in build_plan(config, tensors).rows if row.op == "add_bias"]
    assert [row.operands["bias"] for row in rows] == [
        f"blk.{layer}.attn_{part}.bias" for layer in (0, 1) for part in "qkv"
    ]
    assert [row.operands["out"] for row in rows] == list("qkv") * 2


def test_key_length_sets_the_width_of_queries(tmp_path):
    config, tensors = opened(tmp_path, head_dim=24)
    plan = build_plan(config, tensors)
    assert plan.operands["q"].shape == ("T", 4, 24)
    assert plan.operands["blk.0.attn_q.weight"].shape == (96, 256)


def test_every_missing_tensor_is_named(parts):
    config, tensors = parts
    for name in tensors:
        rest = {key: value for key, value in tensors.items() if key != name}
        if name == "output.weight":
            build_plan(config, rest)  # tied
            continue
        with pytest.raises(ModelFormatError, match=f"tensor {name} is missing"):
            build_plan(config, rest)


def test_every_wrong_shape_is_named(parts):
    config, tensors = parts
    for name, tensor in tensors.items():
        wrong = (tensor.shape[0] + 32, *tensor.shape[1:])
        changed = tensors | {name: Tensor(wrong)}
        with pytest.raises(ModelFormatError, match=rf"tensor {name} has the shape \[{wrong[0]}"):
            build_plan(config, changed)


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.ffn_up.weight", "output_norm.weight"])
@pytest.mark.parametrize(("kind", "words"), [("Q8_K", "Q8_K"), (None, "type 99")])
def test_a_type_without_a_kernel_is_named(parts, name, kind, words):
    config, tensors = parts
    odd = Tensor(tensors[name].shape, FORMATS.get(kind), 99)
    with pytest.raises(UnsupportedError, match=f"tensor {name} is stored as {words}"):
        build_plan(config, tensors | {name: odd})


@pytest.mark.parametrize("name", ["blk.0.attn_q_norm.weight", "blk.2.attn_q.weight", "strange"])
def test_a_tensor_that_no_op_would_use_is_refused(parts, name):
    config, tensors = parts
    with pytest.raises(UnsupportedError, match=f"tensor {name} .* has no place in a llama model"):
        build_plan(config, tensors | {name: Tensor((64,))})


@pytest.mark.parametrize(
    "name",
    ["rope_freqs.weight", "blk.0.attn_rot_embd.weight", "blk.1.attn.rotary_emb.inv_freq"],
)
def test_tables_of_rotary_frequencies_may_be_there(parts, name):
    config, tensors = parts
    assert build_plan(config, tensors | {name: Tensor((8,))}).rows


def test_the_plan_as_text(parts):
    lines = format_plan(build_plan(*parts)).splitlines()
    assert len(lines) == 1 + len(build_plan(*parts).rows)
    assert lines[0].split() == ["row", "op", "operands"]
    assert "embed.f32" in lines[1]
    assert "weight=token_embd.weight:u8[300, 256]" in lines[1]
    assert "out=x:f32[T, 64]" in lines[1]
    assert any("attention.f16" in line and "scale=0.25" in line for line in lines)
    starts = {line.index(line.split()[1]) for line in lines}
    assert len(starts) == 1, "not aligned"


def with_rope_freqs(tmp_path, values):
    tiny = tiny_model(tmp_path / "freqs.gguf", rope_freqs=np.array(values))
    gguf = open_gguf(tiny.path)
    return weights.frequencies(gguf, read_config(gguf))


def test_rope_freqs_are_applied(tmp_path):
    found = with_rope_freqs(tmp_path, [1, 1, 1, 1, 2, 4, 8, 8])
    expected = [10000 ** (-2 * i / 16) / f for i, f in enumerate([1, 1, 1, 1, 2, 4, 8, 8])]
    assert found == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 1, 1], r"rope_freqs\.weight has the shape \[3\]; expected \[8\]"),
        ([1, 1, 1, 1, 1, 1, 0, 1], "finite numbers above 0"),
        ([1, 1, 1, 1, 1, 1, np.nan, 1], "finite numbers above 0"),
    ],
)
def test_broken_rope_freqs_are_refused(tmp_path, values, message):
    with pytest.raises(ModelFormatError, match=message):
        with_rope_freqs(tmp_path, values)


def test_vectors_of_every_format_are_float32(tmp_path):
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    kinds = ["F32", "F16", "BF16", "Q8_0"]
    path = write_gguf(tmp_path / "v.gguf", {}, {kind: (x, kind) for kind in kinds})
    with open_gguf(path) as gguf:
        for kind in kinds:
            vector = weights.vector(gguf, kind)
            assert vector.dtype == np.float32
            assert np.abs(vector - x).max() <= {"F32": 0, "F16": 2e-3}.get(kind, 0.02)
