"""Compiled code on disk: what is broken is built again, a folder that takes none is said, and two
processes do the work once."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time

import pytest

from llama3jit.compile import cache, library
from llama3jit.compile.cache import CacheWarning
from llama3jit.compile.library import Library
from llama3jit.compile.link import linker
from llama3jit.compile.lock import locked
from llama3jit.compile.targets import Target, host_target
from llama3jit.compile.units import Unit

ADD = Unit("llama3jit.ops.add", "add")
SUMS = [1 - 2 + 4 * i / 23 for i in range(24)]  # what one_op gives for it


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A cache of this test alone."""
    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path / "cache"))
    cache.folder.cache_clear()
    yield tmp_path / "cache" / "kernels"
    cache.folder.cache_clear()


def code_files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def put(path, content):
    """Another file under that name: the one that was loaded is still in use."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


BREAK = {
    "cut short": lambda path, sound: put(path, sound[:-100]),
    "cut to its checksum": lambda path, sound: put(path, sound[-32:]),
    "altered": lambda path, sound: put(path, b"\0" + sound[1:]),
    "altered checksum": lambda path, sound: put(path, sound[:-9] + b"x" * 9),
    "empty": lambda path, sound: put(path, b""),
    "other bytes": lambda path, sound: put(path, os.urandom(5000)),
    "gone": lambda path, sound: path.unlink(),
    "unreadable": lambda path, sound: (path.unlink(), path.symlink_to(path.name)),
}


def test_broken_files_are_built_again(folder):
    assert Library([ADD]).built == 1
    path = cache.find(ADD, host_target())
    assert path.parent == folder
    sound = path.read_bytes()
    for name, break_it in BREAK.items():
        break_it(path, sound)
        assert cache.unsealed(path) is None, name
        assert cache.find(ADD, host_target()) is None, name
        put(path, sound)
        assert cache.unsealed(path) == sound[:-32]
    BREAK["unreadable"](path, sound)
    mended = Library([ADD])
    assert mended.built == 1
    assert mended.address(ADD, "entry") != 0
    assert Library([ADD]).built == 0
    assert code_files(folder) == [path.name]


def test_code_that_is_whole_and_does_not_load_is_built_again(folder):
    if not linker():
        pytest.skip("no linker here")
    folder.mkdir(parents=True)
    path = folder / f"{cache.stem_of(ADD, host_target())}.so"
    path.write_bytes(cache.sealed(b"no shared library at all"))
    mended = Library([ADD])
    assert mended.built == 1
    assert "does not load" in mended.reasons["cache"]
    assert Library([ADD]).built == 0


def test_sealed_and_unsealed(tmp_path):
    path = tmp_path / "o"
    path.write_bytes(cache.sealed(b"code"))
    assert cache.unsealed(path) == b"code"
    path.write_bytes(cache.sealed(b""))
    assert cache.unsealed(path) is None
    assert cache.unsealed(tmp_path / "missing") is None
    assert cache.unsealed(tmp_path) is None


def test_files_of_other_processors_and_versions_are_ignored(folder, monkeypatch):
    """A cache that was copied in, or that an older package filled."""
    Library([ADD])
    path = cache.find(ADD, host_target())
    other = Target("x86-64-v9", "x86-64-v3", host_target().features)
    assert cache.find(ADD, other) is None
    path.rename(folder / path.name.replace(host_target().name, other.name))
    assert Library([ADD]).built == 1
    monkeypatch.setattr(cache, "key", lambda unit, target: "0" * 64)
    assert cache.find(ADD, host_target()) is None


def test_an_unwritable_folder_is_said_and_one_of_this_run_used(tmp_path, monkeypatch):
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
    assert found["result"] == pytest.approx(SUMS, rel=1e-6)
    assert any("LLAMA3JIT_CACHE" in warning for warning in found["warnings"])
    assert list((tmp_path / "tmp").iterdir()) == [], "the folder of the run goes with it"


@pytest.fixture(params=[("size=64k", "No space left"), ("noexec", "noexec"), ("ro", "Read-only")])
def bad_mount(request, tmp_path):
    """A file system that is full, one that runs nothing, one that is read-only."""
    option, words = request.param
    place = tmp_path / "mount"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", option, "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True)
    except OSError:
        pytest.skip("no mount command")
    if mounted.returncode:
        pytest.skip("may not mount a file system")
    yield place, words
    subprocess.run(["umount", str(place)], check=True)


def test_a_run_on_a_bad_file_system_still_works(one_op, bad_mount):
    place, words = bad_mount
    found = one_op("llama3jit.ops.add:add:", LLAMA3JIT_CACHE=str(place))
    assert found["built"] == 2
    assert found["result"] == pytest.approx(SUMS, rel=1e-6)
    assert any(words in warning for warning in found["warnings"])


def test_a_full_disk_is_noticed_before_anything_is_compiled(folder, monkeypatch):
    class Full:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def write(self, content):
            assert len(content) > 2**20
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda dir: Full())
    with pytest.warns(CacheWarning, match="No space left on device"):
        assert cache.folder() != folder


def test_the_users_folder_is_the_default(monkeypatch, tmp_path):
    if sys.platform != "linux":
        pytest.skip("the folder's name is Linux's")
    monkeypatch.delenv("LLAMA3JIT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache.folder.cache_clear()
    assert cache.folder() == tmp_path / "llama3jit" / "kernels"
    cache.folder.cache_clear()


def test_two_processes_compile_a_unit_once(start_op, tmp_path):
    environment = {"LLAMA3JIT_CACHE": str(tmp_path)}
    processes = [start_op("llama3jit.ops.add:add:", **environment) for _ in range(2)]
    found = []
    for process in processes:
        with process:
            out, complaint = process.communicate(timeout=120)
        assert process.returncode == 0, complaint
        found.append(json.loads(out))
    assert found[0]["result"] == found[1]["result"]
    assert sorted(one["built"] for one in found) == [0, 2]
    assert len(code_files(tmp_path / "kernels")) == 2


def test_the_lock_is_waited_for_and_not_for_ever(tmp_path):
    def timed(done, patience):
        began = time.monotonic()
        with locked(tmp_path, done, patience):
            return time.monotonic() - began

    with locked(tmp_path, lambda: False):
        assert 0.25 < timed(lambda: False, patience=0.3) < 5
        assert timed(lambda: True, patience=60) < 5
        released = threading.Event()

        def wait():
            with locked(tmp_path, lambda: False, 60):
                assert released.is_set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.2)
        assert waiting.is_alive()
        released.set()
    waiting.join(10)
    assert not waiting.is_alive()
    assert timed(lambda: False, patience=60) < 5


def test_no_lock_stops_nobody(tmp_path, monkeypatch):
    with locked(tmp_path / "missing", lambda: False):
        pass
    (tmp_path / "lock").mkdir()
    with locked(tmp_path, lambda: False):
        pass
    (tmp_path / "lock").rmdir()
    import fcntl

    def refused(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with locked(tmp_path, lambda: False):
        pass


def test_earlier_forms_go_after_a_month_without_use(folder):
    target = host_target()
    Library([ADD])
    current = cache.find(ADD, target)
    prefix = current.name.removesuffix(current.suffix)[: -cache.KEY_DIGITS]
    old = {
        "another form": f"{prefix}{'a' * 24}.so",
        "a bare one": f"{prefix}{'b' * 24}.o",
        "a builder's that died": f"{prefix}{'c' * 24}.so.123.new",
    }
    kept = {
        "another target": f"{prefix}more-{'a' * 24}.so",
        "another unit": f"{prefix.replace('add__add', 'add__add_bias')}{'a' * 24}.so",
        "something else": f"{prefix}notes.txt",
    }
    long_ago = time.time() - 31 * 24 * 3600
    for name in (*old.values(), *kept.values()):
        (folder / name).write_text("")
        os.utime(folder / name, (long_ago, long_ago))
    recent = f"{prefix}{'d' * 24}.so"
    (folder / recent).write_text("")
    os.utime(current, (long_ago, long_ago))

    cache.prune([ADD], target, folder)
    assert code_files(folder) == sorted([current.name, recent, *kept.values()])
    # To use a file is to keep it.
    assert cache.find(ADD, target) == current
    assert current.stat().st_mtime > time.time() - 3600


def test_what_is_built_makes_room(folder, monkeypatch):
    pruned = []
    monkeypatch.setattr(library.cache, "prune", lambda units, *_: pruned.extend(units))
    Library([ADD])
    assert pruned == [ADD]
    Library([ADD])
    assert pruned == [ADD]
