"""Rows picked out, on every face."""

import numpy as np
import pytest
from op_faces import faces_of, nans, run


@pytest.mark.parametrize(("n", "rows"), [(1, [0]), (17, [2]), (63, [0, 2, 3, 99]), (5, [99, 0, 0])])
@pytest.mark.parametrize("face", faces_of("select_rows"))
def test_select_rows(face, n, rows):
    x = np.random.default_rng(n).standard_normal((100, n)).astype(np.float32)
    out = nans(len(rows), n)
    run("select_rows", "", face, out=out, x=x, logits_rows=np.array(rows, np.int32))
    assert [list(row) for row in out] == [list(x[r]) for r in rows]
