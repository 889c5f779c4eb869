"""What shipped libraries call and hold, and that whole models give the same on every level."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from artifacts import make_artifact

from llama3jit.compile import library
from llama3jit.compile.builder import ALLOWED
from llama3jit.compile.link import linker
from llama3jit.compile.targets import LEVELS, is_x86, usable_features
from llama3jit.compile.units import WALKER, Unit, every_unit, symbols

sys.path += [str(Path(__file__).parents[1] / name) for name in ("", "devices")]

SOME = (
    WALKER,
    Unit("llama3jit.ops.add", "add"),
    Unit("llama3jit.ops.rope", "rope_angles"),
    Unit("llama3jit.ops.embed", "embed", "q4_0"),
    Unit("kernels_cpu.matmul", "matmul_int8", "q4_1"),
)
# What LLVM makes of loops, and of a sine and a cosine of the same angle.
FROM_LLVM = {"memcpy", "memmove", "memset", "sincos"}
pytestmark = pytest.mark.skipif(not is_x86() or not linker(), reason="no x86-64, or no linker")


def tool(*command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def check_library(path, level, units):
    """The file of one level: its calls, its exports, its instructions."""
    called = {
        line.split()[1] for line in tool("nm", "-D", "--undefined-only", str(path)).splitlines()
    }
    assert {name.partition("@")[0] for name in called} <= ALLOWED | FROM_LLVM
    given = {line.split()[2] for line in tool("nm", "-D", "--defined-only", str(path)).splitlines()}
    assert given == {symbol for unit in units for symbol in symbols(unit).values()}
    text = tool("objdump", "-d", "-w", str(path))
    if level.cpu == "x86-64-v3":
        assert "ymm" in text
        assert "zmm" not in text
        # In 64-bit code the byte 62 begins an EVEX instruction, and those are AVX-512's alone.
        assert not re.search(r"^\s*[0-9a-f]+:\s+62 ", text, re.MULTILINE)
    else:
        assert re.search(r"vpdpbusd .*zmm", text)
    assert ("vpdpbusd" in text) == (level.name != "x86-64-v3")


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_library_calls_the_c_library_alone_and_is_of_its_level(tmp_path, level):
    """Any machine builds for any level."""
    folder = make_artifact(tmp_path / "kernels", level, SOME)
    check_library(folder / f"llama3jit-{level.name}.so", level, SOME)


def test_objects_have_no_address_of_the_process_that_made_them(tmp_path):
    files = [make_artifact(tmp_path / name, LEVELS[-1], SOME) for name in ("one", "two")]
    one, two = (next(folder.glob("*.so")).read_bytes() for folder in files)
    assert one == two


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_the_whole_library_of_a_level(tmp_path, level):
    units = tuple(every_unit())
    folder = make_artifact(tmp_path / "kernels", level, units)
    check_library(folder / f"llama3jit-{level.name}.so", level, units)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_levels_give_the_same_logits_and_the_same_text(tmp_path, monkeypatch, precision):
    from driving import ids_of, logits_of, opened
    from tiny_model import MIXED, tiny_model

    tiny = tiny_model(tmp_path / "m.gguf", formats=MIXED)
    found = {}
    for level in LEVELS:
        if usable_features() < set(level.features):
            continue
        monkeypatch.setattr(library, "host_target", lambda level=level: level)
        runner = opened(tiny, precision=precision)
        logits = logits_of(runner, ids_of(70))
        ids = ids_of(5)
        for _ in range(40):
            ids.append(int(np.argmax(logits_of(runner, ids)[-1])))
        found[level.name] = (logits, ids)
        runner.close()
    if len(found) < 2:
        pytest.skip("this host has one level")
    (logits, ids), *others = found.values()
    for other_logits, other_ids in others:
        # Vectors have 16 lanes on every level, so that sums have one order.
        np.testing.assert_array_equal(other_logits, logits)
        assert other_ids == ids
