"""Weights packed a few at a time, the large ones in parts."""

import numpy as np
import pytest
from driving import opened
from tiny_model import MIXED, tiny_model

from llama3jit.devices.cpu import packing
from llama3jit.ops import find


@pytest.mark.parametrize("at_once", [1, 5000, 2**30])
def test_every_byte_has_its_place(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(packing, "AT_ONCE", at_once)
    runner = opened(tiny_model(tmp_path / "m.gguf", formats=MIXED))
    try:
        assert len(runner.lowered.packed) > 10
        for name, (weight, variant) in runner.lowered.packed.items():
            row_bytes = runner._arrays[name].shape[1]
            rows = runner._gguf.data(weight).reshape(-1, row_bytes)
            expected = np.zeros(runner._arrays[name].size, np.uint8)
            find("pack").numpy(expected, rows, variant)
            assert np.array_equal(runner._arrays[name].reshape(-1), expected), name
    finally:
        runner.close()


def test_no_pass_reads_much_more_than_it_should(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "AT_ONCE", 3000)
    runner = opened(tiny_model(tmp_path / "m.gguf", formats=MIXED))
    try:
        parts = list(packing.passes(runner.lowered, runner._arrays, runner._gguf))
        assert all(len(part.rows) == len(part.read) for part in parts)
        row = max(array.shape[1] for array in runner._arrays.values() if array.dtype == np.uint8)
        assert max(part.size for part in parts) < 3000 + max(3000, 32 * row)
        whole = sum(runner._arrays[name].nbytes for name in runner.lowered.packed)
        assert sum(part.size for part in parts) == whole
    finally:
        runner.close()
