"""The store that tests of this folder write to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from llama3jit.files.store import Store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")
