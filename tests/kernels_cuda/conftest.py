"""The GPU that tests marked `gpu` run on, and its kernels: compiled when one is first asked for, or
found in the folder LLAMA3JIT_TEST_CUBINS, which may be one of shipped code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kernel_runs import Runner

# The launcher is that of the benchmarks.
sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Runner:
    pytest.importorskip("cuda.bindings.driver")
    from cuda_launch import Gpu
    from kernel_runs import Runner

    given = os.environ.get("LLAMA3JIT_TEST_CUBINS")
    folder = Path(given) if given else tmp_path_factory.mktemp("cubins")
    return Runner(Gpu(folder), build=not given)
