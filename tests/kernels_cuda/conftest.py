"""The GPU that tests marked `gpu` run on, and its kernels: compiled here when one is first asked for,
or found in the folder LLAMA3JIT_TEST_CUBINS."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kernel_runs import Runner


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    pytest.importorskip("cuda.bindings.driver")
    from bench.cuda_launch import Gpu
    from kernel_runs import Runner

    given = os.environ.get("LLAMA3JIT_TEST_CUBINS")
    folder = Path(given) if given else tmp_path_factory.mktemp("cubins")
    yield Runner(Gpu(folder), build=not given)
