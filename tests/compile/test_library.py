"""Building and loading: progress, and kernels that do not compile or must not be called."""

import os
import signal
import textwrap
import time
from importlib import import_module

import numpy as np
import psutil
import pytest
from op_faces import run_compiled

from llama3jit import ops
from llama3jit.compile import build, jobs, sources
from llama3jit.compile.library import Library
from llama3jit.compile.targets import host_target
from llama3jit.compile.units import Unit, symbols
from llama3jit.devices.cpu.pool import WALKER, Pool
from llama3jit.errors import CompileError, DeviceError

BROKEN = """
    from __future__ import annotations
    from numba import types
    from llama3jit.ops.op import op

    getpid = types.ExternalFunction("getpid", types.int32())

    @op
    def untypable(out: f32[n], items: n):
        for i in items:
            out[i] = "text"

    @op
    def stranger(out: f32[n], items: n):
        for i in items:
            out[i] = getpid()

    @op
    def raising(out: f32[n], items: n):
        for i in items:
            if out[i] > 2:
                raise ValueError("more than 2")
            out[i] += 1

    @op
    def sound(out: f32[n], items: n):
        for i in items:
            out[i] = 7
"""


@pytest.fixture
def broken(tmp_path, monkeypatch):
    (tmp_path / "broken_kernels.py").write_text(textwrap.dedent(BROKEN))
    monkeypatch.syspath_prepend(tmp_path)
    return "broken_kernels"


def test_a_kernel_that_does_not_compile_says_why(broken):
    units = [Unit(broken, name) for name in ("untypable", "stranger", "sound")]
    with pytest.raises(CompileError) as caught:
        Library(units)
    words = str(caught.value)
    assert "these kernels do not compile" in words
    assert "broken_kernels:untypable:" in words
    assert "broken_kernels:stranger:" in words
    assert "broken_kernels:sound:" not in words
    assert "unicode_type" in words, "the compiler's own words"
    assert "it calls getpid" in words
    # What did compile was kept.
    assert Library(units[2:]).built == 0


def test_a_kernel_that_raises_fails_the_pass_and_not_the_process(broken, monkeypatch):
    monkeypatch.setattr(ops, "find", lambda name: getattr(import_module(broken), name))
    unit = Unit(broken, "raising")
    library = Library([WALKER, unit])
    pool = Pool(2, library)
    with pytest.raises(DeviceError, match=r"a compiled op failed with status \d+"):
        run_compiled(library, pool, unit, {"out": np.arange(9, dtype=np.float32)})
    small = np.zeros(9, np.float32)
    run_compiled(library, pool, unit, {"out": small})
    assert small.tolist() == [1] * 9
    pool.stop()


def test_a_module_that_is_not_there():
    with pytest.raises(CompileError, match="no_such_kernels"):
        Library([Unit("no_such_kernels", "x")])


def test_progress_counts_up(tmp_path, monkeypatch):
    from llama3jit.compile import cache

    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path))
    cache.folder.cache_clear()
    units = [Unit("llama3jit.ops.add", "add"), Unit("llama3jit.ops.add", "add_bias")]
    calls = []
    library = Library([*units, units[0]], lambda *call: calls.append(call))
    assert library.built == 2
    assert [call[:2] for call in calls] == [(0, 2), (1, 2), (2, 2)]
    assert {call[2] for call in calls[1:]} == {str(unit) for unit in units}
    assert calls[0][2].startswith("no sound file of "), "why, to begin with"
    calls.clear()
    assert Library(units, lambda *call: calls.append(call)).built == 0
    assert calls == []
    cache.folder.cache_clear()


@pytest.mark.parametrize("at", [0, 1])
def test_an_error_of_whoever_shows_progress_is_passed_on(tmp_path, at):
    class Enough(Exception):
        pass

    def stop(done, total, name):
        if done == at:
            raise Enough

    units = [Unit("llama3jit.ops.add", "add"), Unit("llama3jit.ops.add", "add_bias")]
    before = set(psutil.Process().children())
    with pytest.raises(Enough):
        build.build({unit: tmp_path / unit.stem for unit in units}, host_target(), stop)
    assert set(psutil.Process().children()) <= before


def test_code_of_an_edited_source_is_not_stored(tmp_path, monkeypatch):
    unit, target = Unit("llama3jit.ops.add", "add"), host_target()
    with monkeypatch.context() as patch:
        # What it was before the edit that the builder has seen.
        patch.setattr(build, "source_key", lambda unit, target: "0" * 64)
        with pytest.raises(CompileError, match="edited while it was compiled; run it again"):
            build.build({unit: tmp_path / unit.stem}, target)
    assert list(tmp_path.iterdir()) == []
    jobs.check_sources(unit, target, sources.source_key(unit, target))


def has_ended(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE  # nobody asks after an orphan here
    except psutil.NoSuchProcess:
        return True


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_builders_end_with_their_parent(start_op, tmp_path):
    units = "llama3jit.ops.add:add: llama3jit.ops.attention:attention:f16"
    with start_op(units, LLAMA3JIT_CACHE=str(tmp_path), LLAMA3JIT_KERNELS="jit") as process:
        parent, builders = psutil.Process(process.pid), []
        while not builders and process.poll() is None:
            builders = parent.children()
            time.sleep(0.01)
        time.sleep(0.3)  # somewhere in its imports
        os.kill(process.pid, signal.SIGKILL)
    until = time.monotonic() + 2
    while not all(map(has_ended, builders)) and time.monotonic() < until:
        time.sleep(0.02)
    left = [process for process in builders if not has_ended(process)]
    for process in left:
        process.kill()
    assert builders
    assert left == []


def test_addresses():
    unit = Unit("llama3jit.ops.add", "add")
    library = Library([WALKER, unit])
    found = [library.address(unit, name) for name in ("entry", "count")]
    found += [library.address(WALKER, name) for name in ("run", "serve", "stop")]
    assert len(set(found)) == 5
    assert 0 not in found
    assert symbols(unit)["entry"] == "l3j_llama3jit_ops_add__add_entry"
    assert np.int64(found[0]) > 0
