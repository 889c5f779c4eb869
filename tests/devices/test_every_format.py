"""Whole tiny models in every block format on the CPU, against the float64 forward pass of the
weights as the gguf package dequantises them."""

import pytest
from driving import ids_of, logits_of, opened
from float64_llama import forward, mean_kl
from tiny_model import tiny_model

from kernels_cpu import QUANTISED, TUNED
from llama3jit.ops.dequantise import FORMATS

MATRICES = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
SIZES = {"n_embd": 256, "n_ff": 512, "n_layer": 1, "vocab": 300}
PORTABLE = [variant.upper() for variant in FORMATS if variant not in TUNED["matmul"][1]]
TUNED_FORMATS = [variant.upper() for variant in QUANTISED]
# Seven at a time in one model: the matrices of its layer.
MIXES = [
    kinds[first : first + 7]
    for kinds in (PORTABLE, TUNED_FORMATS)
    for first in range(0, len(kinds), 7)
]


def divergence(path, formats, *, tied=False, **options):
    return run(path, formats, tied=tied, **options)[0]


def run(path, formats, *, tied=False, **options):
    """The mean divergence of a model from float64, and the runner."""
    tiny = tiny_model(path, formats=formats, seed=3, tied=tied, **SIZES)
    ids = ids_of(70)
    truth = forward(tiny, ids)
    assert truth.std() > 0.1, "logits too flat to tell right from wrong"
    runner = opened(tiny, kv_dtype="f32", **options)
    return mean_kl(truth, logits_of(runner, ids)), runner


@pytest.mark.parametrize("mix", MIXES, ids="-".join)
@pytest.mark.parametrize(
    ("device", "precision", "bound"),
    [("cpu", "exact", 1e-9), ("cpu", "fast", 5e-3), ("reference", "exact", 1e-11)],
)
def test_mixed_formats(tmp_path, mix, device, precision, bound):
    formats = {f"*.{name}.weight": kind for name, kind in zip(MATRICES, mix, strict=False)}
    formats |= {"token_embd.weight": mix[0], "output.weight": "Q8_0"}
    found = divergence(tmp_path / "m.gguf", formats, device=device, precision=precision)
    assert found < bound


# int8 activations: steps of 1/127 of the largest of 32, so errors of about 0.5 % a product.
@pytest.mark.parametrize(("precision", "bound"), [("exact", 1e-9), ("fast", 2.5e-3)])
@pytest.mark.parametrize("kind", TUNED_FORMATS)
def test_one_tuned_format(tmp_path, kind, precision, bound):
    found, runner = run(tmp_path / "m.gguf", {"*": kind}, precision=precision)
    print(f"{kind} {precision}: mean KL {found:.1e}")
    assert found < bound
    units = {unit for unit in runner.lowered.units if unit.op.startswith("matmul")}
    op = "matmul_int8" if precision == "fast" else "matmul"
    assert {str(unit) for unit in units} == {f"kernels_cpu.matmul:{op}:{kind.lower()}"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PORTABLE)
def test_one_format(tmp_path, kind):
    kl = divergence(tmp_path / "m.gguf", {"*": kind}, precision="exact", tied=True)
    print(f"{kind}: mean KL {kl:.1e}")
    assert kl < 1e-9
