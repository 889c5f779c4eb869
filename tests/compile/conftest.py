"""Runs one op in a process of its own, on this tree or on a copy of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "ops"))  # for its helpers
OneOp = Callable[..., dict[str, Any]]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package without shipped code, to edit."""
    ignored = shutil.ignore_patterns("__pycache__", "_kernels")
    for name in ("llama3jit", "kernels_cpu"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name, ignore=ignored)
    return tmp_path / "copy"


@pytest.fixture
def start_op() -> Callable[..., subprocess.Popen[str]]:
    """start_op(unit, root=..., **environment): the process. More units may follow after blanks."""

    def start(unit: str, root: Path = ROOT, **environment: str) -> subprocess.Popen[str]:
        paths = os.pathsep.join(map(str, (root, ROOT / "tests" / "ops")))
        return subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "compile" / "one_op.py"), *unit.split()],
            env={**os.environ, "PYTHONPATH": paths, **environment},
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def one_op(start_op: Callable[..., subprocess.Popen[str]]) -> OneOp:
    """one_op(unit, root=..., **environment): what the process printed."""

    def run(unit: str, root: Path = ROOT, **environment: str) -> dict[str, Any]:
        with start_op(unit, root, **environment) as process:
            out, complaint = process.communicate(timeout=120)
        assert process.returncode == 0, complaint
        result: dict[str, Any] = json.loads(out)
        return result

    return run
