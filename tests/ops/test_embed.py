"""Token embedding on every face, from every format."""

import numpy as np
import pytest
from block_values import BLOCK_BYTES, random_blocks, values_of
from op_faces import faces_of, nans, run

NJIT = ("q8_0",)  # the faces differ in nothing but the format's function
CASES = [(face, v) for v in BLOCK_BYTES for face in faces_of("embed", v, njit=v in NJIT)]


@pytest.mark.parametrize(("face", "variant"), CASES)
@pytest.mark.parametrize("tokens", [[0], [2, 2, 16], list(range(16, -1, -1))])
def test_embed(face, variant, tokens):
    weight = random_blocks(np.random.default_rng(3), variant, 17, 64)
    out = nans(len(tokens), 64)
    run("embed", variant, face, out=out, weight=weight, tokens=np.array(tokens, np.int32))
    expected = values_of(weight, variant)[tokens]
    assert np.array_equal(out, expected.astype(np.float32))
