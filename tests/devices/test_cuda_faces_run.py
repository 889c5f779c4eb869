"""The whole plan on the ops' cuda.jit faces, as they are written, equals the reference."""

import numpy as np
import pytest
from driving import ids_of, logits_of, opened
from float64_llama import mean_kl
from tiny_model import MIXED, tiny_model

pytestmark = pytest.mark.gpu


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kv_dtype", ["f16", "f32"])
def test_the_plan_on_its_cuda_faces(tmp_path, kv_dtype):
    tiny = tiny_model(tmp_path / "tiny.gguf", formats=MIXED)
    ids = ids_of(100)
    found = logits_of(opened(tiny, "cuda faces", kv_dtype=kv_dtype), ids)
    expected = logits_of(opened(tiny, "reference", kv_dtype=kv_dtype), ids)
    assert np.isfinite(found).all()
    assert mean_kl(expected, found) < 1e-6
    assert np.abs(found - expected).max() < 1e-3 * expected.std()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kv_dtype", ["q8_0", "q4_0"])
def test_a_quantised_cache_on_cuda_faces(tmp_path, kv_dtype):
    """Where a value lies between two quants, a last bit decides which it becomes."""
    tiny = tiny_model(tmp_path / "tiny.gguf", formats=MIXED, head_dim=32)
    ids = ids_of(100)
    found = logits_of(opened(tiny, "cuda faces", kv_dtype=kv_dtype), ids)
    expected = logits_of(opened(tiny, "reference", kv_dtype=kv_dtype), ids)
    loss = mean_kl(logits_of(opened(tiny, "reference", kv_dtype="f32"), ids), expected)
    assert np.isfinite(found).all()
    assert mean_kl(expected, found) < 0.1 * loss
