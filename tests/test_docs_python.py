"""The examples of docs/python.md run, one after the other."""

import os
import subprocess
import sys

import pytest
from test_docs import ROOT, blocks, here

from llama3jit import errors
from llama3jit.files.catalogue import DEFAULT_MODEL
from llama3jit.files.store import resolve

PAGE = ROOT / "docs/python.md"


def model():
    """The model of the examples, under the name that they give it or by its path."""
    try:
        resolve(DEFAULT_MODEL)
        return DEFAULT_MODEL
    except errors.ModelNotFoundError:
        return os.environ.get("LLAMA3JIT_TEST_MODEL") or pytest.skip(f"no {DEFAULT_MODEL}")


def test_the_examples_run(tmp_path):
    code = "\n".join(blocks(PAGE, "python")).replace(DEFAULT_MODEL, str(model()))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=here(ROOT),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    for said in ("llama cpu 2048 49152", "Paris", "did you mean 'max_tokens'", "holds 2048"):
        assert said in done.stdout
    assert "['system', 'user', 'assistant']" in done.stdout
    assert os.listdir(tmp_path) == ["rivers.session"]


def test_all_errors_are_on_the_page():
    names = [name for name in vars(errors) if name.endswith("Error") and name != "Llama3JitError"]
    for name in names:
        assert f"`{name}`" in PAGE.read_text(), name
        assert issubclass(getattr(errors, name), errors.Llama3JitError)
