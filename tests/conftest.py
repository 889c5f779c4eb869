"""Being here puts tests/ on the import path, for the helpers that several folders use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled kernels go to a folder of this run, so that they are built once and afresh; to
    LLAMA3JIT_CACHE if it is set. Those that `make kernels` put into the tree are left alone, unless
    LLAMA3JIT_KERNELS says so."""
    with pytest.MonkeyPatch.context() as patch:
        if "LLAMA3JIT_KERNELS" not in os.environ:
            patch.setenv("LLAMA3JIT_KERNELS", "cache,jit")
        if "LLAMA3JIT_CACHE" not in os.environ:
            patch.setenv("LLAMA3JIT_CACHE", str(tmp_path_factory.mktemp("kernels")))
        yield
