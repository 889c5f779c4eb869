"""Compiled objects on disk: broken ones are built again, a folder that takes none is said."""

import json
import os
import sys

import pytest

from llama3jit.compile import cache
from llama3jit.compile.cache import CacheWarning
from llama3jit.compile.library import Library
from llama3jit.compile.targets import host_target
from llama3jit.compile.units import Unit

ADD = Unit("llama3jit.ops.add", "add")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of this test alone."""
    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path / "cache"))
    cache.folder.cache_clear()
    yield tmp_path / "cache" / "kernels"
    cache.folder.cache_clear()


BREAK = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "cut to its checksum": lambda path: path.write_bytes(path.read_bytes()[:32]),
    "altered": lambda path: path.write_bytes(path.read_bytes()[:-9] + b"\0" + b"x" * 8),
    "empty": lambda path: path.write_bytes(b""),
    "other bytes": lambda path: path.write_bytes(os.urandom(5000)),
    "gone": lambda path: path.unlink(),
    "unreadable": lambda path: (path.unlink(), path.symlink_to(path.name)),
}


def test_broken_objects_are_built_again(folder):
    assert Library([ADD]).built == 1
    path = cache.path_of(ADD, host_target())
    assert path.parent == folder
    sound = path.read_bytes()
    for name, break_it in BREAK.items():
        break_it(path)
        assert cache.read(path) is None, name
        path.unlink(missing_ok=True)
        path.write_bytes(sound)
        assert cache.read(path) == sound[32:]
    BREAK["unreadable"](path)
    library = Library([ADD])
    assert library.built == 1
    assert library.address(ADD, "entry") != 0
    assert Library([ADD]).built == 0
    assert [file.name for file in folder.iterdir()] == [path.name]


def test_sealed_and_read(tmp_path):
    path = tmp_path / "o"
    path.write_bytes(cache.sealed(b"code"))
    assert cache.read(path) == b"code"
    path.write_bytes(cache.sealed(b""))
    assert cache.read(path) is None
    assert cache.read(tmp_path / "missing") is None
    assert cache.read(tmp_path) is None


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    """Beneath a file nothing can be made, not even by root."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path / "file" / "cache"))
    cache.folder.cache_clear()
    with pytest.warns(CacheWarning, match="cannot be kept in .*set LLAMA3JIT_CACHE to a folder"):
        found = cache.folder()
    assert found.is_dir()
    assert cache.folder() == found
    cache.folder.cache_clear()
    found.rmdir()


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere"
)
def test_a_read_only_folder(tmp_path, monkeypatch):
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels").chmod(0o500)
    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path))
    cache.folder.cache_clear()
    with pytest.warns(CacheWarning):
        cache.folder()
    cache.folder.cache_clear()


def test_a_run_without_a_folder_still_works(one_op, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    found = one_op(
        "llama3jit.ops.add:add:",
        LLAMA3JIT_CACHE=str(tmp_path / "file"),
        TMPDIR=str(tmp_path / "tmp"),
    )
    assert found["built"] == 2
    assert found["result"] == pytest.approx([1 - 2 + 4 * i / 23 for i in range(24)], rel=1e-6)
    assert any("LLAMA3JIT_CACHE" in warning for warning in found["warnings"])


def test_the_users_folder_is_the_default(monkeypatch, tmp_path):
    if sys.platform != "linux":
        pytest.skip("the folder's name is Linux's")
    monkeypatch.delenv("LLAMA3JIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache.folder.cache_clear()
    assert cache.folder() == tmp_path / "llama3jit" / "kernels"
    cache.folder.cache_clear()


def test_two_processes_may_build_the_same_units(start_op, tmp_path):
    processes = [
        start_op("llama3jit.ops.add:add:", LLAMA3JIT_CACHE=str(tmp_path)) for _ in range(2)
    ]
    found = []
    for process in processes:
        with process:
            out, complaint = process.communicate(timeout=120)
        assert process.returncode == 0, complaint
        found.append(json.loads(out))
    assert found[0]["result"] == found[1]["result"]
    assert {file.suffix for file in (tmp_path / "kernels").iterdir()} == {".o"}
    assert len(list((tmp_path / "kernels").iterdir())) == 2
