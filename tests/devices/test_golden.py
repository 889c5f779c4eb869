"""SmolLM2-135M against the float64 logits of its dequantised weights, by bench/golden.py."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from llama3jit.errors import ModelNotFoundError
from llama3jit.files.store import resolve

LLAMA_CPP = 3.55e-3  # llama.cpp's mean KL over all rows


@pytest.fixture(scope="module")
def bench():
    path = Path(__file__).parents[2] / "bench" / "golden.py"
    spec = importlib.util.spec_from_file_location("bench_golden", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def golden(bench):
    if not bench.GOLDEN.is_file():
        pytest.skip(f"{bench.GOLDEN} is not there")
    with np.load(bench.GOLDEN) as file:
        return {key: file[key] for key in file.files}


@pytest.fixture(scope="module")
def model():
    try:
        return resolve(os.environ.get("LLAMA3JIT_TEST_MODEL") or "smollm2-135m-instruct")
    except ModelNotFoundError as error:
        pytest.skip(f"{error} (or name the file in LLAMA3JIT_TEST_MODEL)")


def test_the_measure_gives_llama_cpps_figure(bench, golden):
    rows = [
        bench.kl_of(golden, name, golden[f"{name}/llamacpp_logits"], golden[f"{name}/llamacpp_lse"])
        for name in bench.INPUTS
    ]
    assert sum(map(len, rows)) == 640
    assert np.concatenate(rows).mean() == pytest.approx(LLAMA_CPP, rel=2e-3)


def test_the_truth_is_not_far_from_itself(bench, golden):
    for name in bench.INPUTS:
        top = golden[f"{name}/top_logits"], golden[f"{name}/lse"]
        assert np.abs(bench.kl_of(golden, name, *top)).max() < 1e-12
    # Whole rows that hold the golden logits, and the rest of the mass spread over the other ids.
    vocab = 49152
    ids, top, lse = (golden[f"code/{key}"] for key in ("top_ids", "top_logits", "lse"))
    rest = 1 - np.exp(top.astype(np.float64) - lse[:, None]).sum(axis=1)
    other = lse + np.log(np.maximum(rest, 1e-12) / (vocab - 64))
    logits = np.repeat(other[:, None], vocab, axis=1)
    np.put_along_axis(logits, ids, top.astype(np.float64), axis=1)
    assert np.abs(bench.kl_rows(logits, golden, "code")).max() < 1e-6
    assert bench.kl_rows(logits + 1e-1 * (np.arange(vocab) % 2), golden, "code").mean() > 1e-5


def test_exact_mode(bench, golden, model):
    table = bench.measure(model, golden, "exact", threads=2)
    assert table["all"]["rows"] == 640
    assert table["all"]["kl"] < 1e-6
    assert table["all"]["top_1"] == 1.0


def test_fast_mode(bench, golden, model):
    table = bench.measure(model, golden, "fast", threads=2)
    assert table["all"]["rows"] == 640
    assert table["all"]["kl"] <= 1.1 * LLAMA_CPP


@pytest.mark.parametrize(("kv_dtype", "most"), [("f16", 1e-5), ("q8_0", 6e-4), ("q4_0", 0.15)])
def test_what_the_cache_loses(bench, golden, model, kv_dtype, most):
    """llama.cpp's figures, activations rounded to int8 besides: 3.8e-3 for q8_0, 0.084 for q4_0."""
    table = bench.measure(model, golden, "exact", threads=2, kv_dtype=kv_dtype)
    assert table["all"]["kl"] < most
