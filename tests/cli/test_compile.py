"""`llama3jit compile`, on a few units in place of all."""

import ctypes
import json
import os

import pytest

from llama3jit.cli.app import run
from llama3jit.compile import build, cache, shipping
from llama3jit.compile.artifact import MANIFEST, open_artifact
from llama3jit.compile.link import linker
from llama3jit.compile.targets import LEVELS, host_target, is_x86
from llama3jit.compile.units import WALKER, Unit, symbols

FEW = [WALKER, Unit("llama3jit.ops.add", "add"), Unit("llama3jit.ops.add", "add_bias")]
linking = pytest.mark.skipif(linker() is None, reason="no linker here")


@pytest.fixture(autouse=True)
def few(monkeypatch, tmp_path):
    """Three units are all that there is, and nothing of them is kept yet."""
    monkeypatch.setattr(shipping, "every_unit", lambda: FEW)
    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path / "cache"))
    cache.folder.cache_clear()
    yield
    cache.folder.cache_clear()


@pytest.fixture
def no_compiler(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("something is compiled")

    monkeypatch.setattr(shipping, "build", refuse)


def test_the_cache_gets_what_it_lacks(tmp_path, capsys, monkeypatch):
    assert run(["compile"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{tmp_path / 'cache' / 'kernels'}\n"
    assert err == "compiling 3 kernels, once\n"
    files = [cache.find(unit, host_target()) for unit in FEW]
    assert None not in files
    # One is damaged, and alone built again.
    files[1].write_bytes(b"")
    built = []
    monkeypatch.setattr(
        shipping, "build", lambda f, *rest: (built.extend(f), build.build(f, *rest))
    )
    assert run(["compile"]) == 0
    assert built == [FEW[1]]
    assert cache.find(FEW[1], host_target()) == files[1]


def test_a_full_cache_needs_no_compiler(capsys, monkeypatch):
    assert run(["compile"]) == 0
    capsys.readouterr()
    monkeypatch.setattr(shipping, "build", None)
    assert run(["compile"]) == 0
    assert capsys.readouterr().err == ""


@linking
@pytest.mark.skipif(not is_x86(), reason="no x86-64")
def test_all_levels_into_a_folder(tmp_path, capsys):
    out = tmp_path / "new" / "kernels"
    assert run(["compile", "--target", "all", "--out", str(out)]) == 0
    stdout, stderr = capsys.readouterr()
    assert stdout == f"{out / MANIFEST}\n"
    assert stderr == f"compiling {len(FEW) * len(LEVELS)} kernels, once\n"
    manifest = json.loads((out / MANIFEST).read_text())
    assert set(manifest["targets"]) == {level.name for level in LEVELS}
    for level in LEVELS:
        shipped = open_artifact(out, level)
        assert all(map(shipped.has, FEW))
    assert not (tmp_path / "cache").exists(), "the cache was not asked for"


@linking
def test_one_target_into_a_folder(tmp_path, capsys):
    out, name = tmp_path / "kernels", host_target().name
    chosen = ["--target", name] if name in {level.name for level in LEVELS} else []
    assert run(["compile", *chosen, *chosen, "--out", str(out)]) == 0
    manifest = json.loads((out / MANIFEST).read_text())
    assert list(manifest["targets"]) == [name]
    library = ctypes.CDLL(str(out / manifest["targets"][name]["file"]))
    for unit in FEW:
        described = manifest["targets"][name]["units"][str(unit)]["exports"]
        assert {each["symbol"] for each in described.values()} == set(symbols(unit).values())
        assert all(hasattr(library, each["symbol"]) for each in described.values())


WRONG = {
    "no such target": (["--target", "pentium"], "there is no target 'pentium'; expected x86-64-v4"),
    "several for the cache": (["--target", "all"], "several targets need --out FOLDER"),
    "no argument": (["--target"], "--target"),
    "a folder that cannot be": (["--out", "/proc/self/status/x"], "/proc/self/status/x cannot be"),
}


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_a_line_and_nothing_is_compiled(case, capsys):
    arguments, message = WRONG[case]
    assert run(["compile", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_a_kernel_that_does_not_compile(tmp_path, monkeypatch, capsys):
    (tmp_path / "bad_kernels.py").write_text(
        "from __future__ import annotations\nfrom llama3jit.ops.op import op\n"
        "@op\ndef bad(out: f32[n], items: n):\n    for i in items: out[i] = 'text'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(shipping, "every_unit", lambda: [*FEW, Unit("bad_kernels", "bad")])
    assert run(["compile"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "these kernels do not compile: bad_kernels:bad:" in err
    # The others were built, and are kept.
    assert None not in [cache.find(unit, host_target()) for unit in FEW]


@pytest.mark.usefixtures("no_compiler")
def test_without_a_linker_there_is_no_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    assert run(["compile", "--out", str(tmp_path / "kernels")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "there is no C compiler to link with" in err
    assert not (tmp_path / "kernels").exists()
