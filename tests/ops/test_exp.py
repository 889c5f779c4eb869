"""exp over its whole range, in both forms."""

import math

import numpy as np
import pytest

from llama3jit.ops import faces
from llama3jit.ops.exp import HIGHEST, LOWEST, exp
from llama3jit.ops.op import CONTRACT

numba = pytest.importorskip("numba")


def portable():
    jit = numba.njit(fastmath=set(CONTRACT), error_model="numpy")
    body = faces.Rebuilder("cpu", jit).compiled(exp, {})
    return _over(body)


def _over(body):
    @numba.njit
    def apply(xs, out):
        for i in range(xs.size):
            out[i] = body(xs[i])

    return apply


def vector():
    from kernels_cpu import exp as kernel
    from kernels_cpu.simd import load_f32, store_f32

    body = numba.njit(kernel.exp)

    @numba.njit
    def apply(xs, out):
        for i in range(0, xs.size, 16):
            store_f32(out, i, body(load_f32(xs, i)))

    return apply


FORMS = {"portable": portable, "vector": vector}


@pytest.fixture(scope="module", params=FORMS)
def form(request):
    return FORMS[request.param]()


def applied(form, xs):
    xs = np.ascontiguousarray(xs, np.float32)
    padded = np.concatenate([xs, np.zeros(-len(xs) % 16, np.float32)])
    out = np.full(len(padded), np.nan, np.float32)
    form(padded, out)
    return out[: len(xs)]


def errors_in_units(form, xs):
    """Off the truth by how many units in the last place."""
    found = applied(form, xs)
    truth = np.exp(np.asarray(xs, np.float32).astype(np.float64))
    return np.abs(found - truth) / np.spacing(truth.astype(np.float32))


def test_within_2_units(form):
    xs = np.linspace(LOWEST, HIGHEST, 2_000_001)
    assert errors_in_units(form, xs).max() <= 2


def test_within_2_units_near_zero_and_at_halves_of_ln_2(form):
    tiny = np.float32(2.0) ** -np.arange(0, 140, dtype=np.float32)
    edges = (np.arange(-120, 120) + 0.5) * math.log(2)
    around = np.concatenate([np.nextafter(np.float32(edges), np.float32(s)) for s in (-999, 999)])
    assert errors_in_units(form, np.concatenate([tiny, -tiny, [0.0, -0.0], around])).max() <= 2


def test_outside_it_is_that_of_the_end(form):
    low, high = applied(form, [LOWEST, HIGHEST])
    assert (applied(form, [-88, -1e30, -np.inf]) == low).all()
    assert (applied(form, [89, 1e30, np.inf]) == high).all()


def test_nan_stays_nan(form):
    xs = np.zeros(33, np.float32)
    xs[[0, 5, 17, 32]] = np.nan
    assert np.flatnonzero(np.isnan(applied(form, xs))).tolist() == [0, 5, 17, 32]


def test_in_plain_python():
    for x in (-87.0, -1.0, 0.0, 1e-8, 0.3, 1.0, 88.0):
        assert math.isclose(exp(np.float32(x)), math.exp(np.float32(x)), rel_tol=3e-7)
