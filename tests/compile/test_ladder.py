"""Shipped, cached, or compiled: which rung is taken, and what is said of those that are not."""

import hashlib
import os
import shutil
import subprocess
import sys

import pytest
from artifacts import ADD, SWIGLU, UNITS, edit_manifest, make_artifact

from llama3jit import doctor
from llama3jit.compile import artifact, build, cache, sources
from llama3jit.compile.artifact import MANIFEST, open_artifact, write_artifact
from llama3jit.compile.library import Library, rungs, survey
from llama3jit.compile.link import linker
from llama3jit.compile.targets import host_target
from llama3jit.compile.units import WALKER, Unit
from llama3jit.errors import CompileError, InvalidArgumentError

pytestmark = pytest.mark.skipif(linker() is None, reason="no linker here")
ROW = [-2 + 4 * i / 23 for i in range(24)]
SUMS = pytest.approx([1 + x for x in ROW], rel=1e-6)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Shipped code of four units for this host."""
    return make_artifact(tmp_path_factory.mktemp("shipped") / "kernels", host_target())


@pytest.fixture
def shipped(built, tmp_path):
    """A copy to break."""
    return shutil.copytree(built, tmp_path / "shipped")


@pytest.fixture(autouse=True)
def installed(monkeypatch, tmp_path):
    """A package without shipped code, an empty cache of its own, nothing forced."""
    monkeypatch.setattr(artifact, "SHIPPED", tmp_path / "none")
    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LLAMA3JIT_KERNELS", "")
    cache.folder.cache_clear()
    yield
    cache.folder.cache_clear()


@pytest.fixture
def no_compiler(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("something is compiled")

    monkeypatch.setattr(build, "build", refuse)


# What LLAMA3JIT_KERNELS says -> the rungs to try.
FORCED = {
    "": ["shipped", "cache", "jit"],
    "shipped": ["shipped"],
    "cache": ["cache"],
    "jit": ["jit"],
    "jit,cache": ["cache", "jit"],
}


@pytest.mark.parametrize("forced", FORCED)
def test_rungs(monkeypatch, forced, tmp_path):
    monkeypatch.setenv("LLAMA3JIT_KERNELS", forced)
    assert rungs() == (FORCED[forced], tmp_path / "none")


def test_a_folder_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA3JIT_KERNELS", str(tmp_path / "missing"))
    assert rungs() == (["shipped"], tmp_path / "missing")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("LLAMA3JIT_KERNELS", "here")
    assert rungs()[0] == ["shipped"]


@pytest.mark.parametrize("forced", ["fast", "cache,fast", ","])
def test_an_unknown_rung(monkeypatch, forced):
    monkeypatch.setenv("LLAMA3JIT_KERNELS", forced)
    with pytest.raises(InvalidArgumentError, match="expected shipped, cache, jit, or a folder"):
        Library([ADD])


def test_shipped_code_is_taken_first(monkeypatch, built, no_compiler, tmp_path):
    monkeypatch.setattr(artifact, "SHIPPED", built)
    found = Library(UNITS)
    assert found.rung_of == dict.fromkeys(UNITS, "shipped")
    assert (found.reasons, found.built) == ({}, 0)
    assert not (tmp_path / "cache").exists(), "nothing is written"
    assert survey(UNITS) == (found.rung_of, {})


def test_a_folder_is_taken_by_its_path(monkeypatch, built, no_compiler):
    monkeypatch.setenv("LLAMA3JIT_KERNELS", str(built))
    assert set(Library(UNITS).rung_of.values()) == {"shipped"}
    other = Unit("llama3jit.ops.select_rows", "select_rows")
    with pytest.raises(CompileError, match=r"1 kernels \(llama3jit.ops.select_rows.*edited or add"):
        Library([ADD, other])


def test_an_empty_cache_that_is_forced(monkeypatch, no_compiler):
    monkeypatch.setenv("LLAMA3JIT_KERNELS", "cache")
    with pytest.raises(CompileError, match=r"not to be had from cache .*unset LLAMA3JIT_KERNELS"):
        Library([ADD])
    assert survey([ADD])[0] == {ADD: "none"}


def test_jit_compiles_what_is_there_already(monkeypatch):
    first = Library([ADD])
    assert first.rung_of == {ADD: "jit"}
    assert Library([ADD]).rung_of == {ADD: "cache"}
    monkeypatch.setenv("LLAMA3JIT_KERNELS", "jit")
    assert Library([ADD]).rung_of == {ADD: "jit"}
    assert survey([ADD])[0] == {ADD: "jit"}


def test_shipped_then_cache_then_jit(monkeypatch, built):
    """Each rung gives what the ones before it lack, and the reasons are told."""
    other = Unit("llama3jit.ops.select_rows", "select_rows")
    assert Library([other]).built == 1
    monkeypatch.setattr(artifact, "SHIPPED", built)
    told = []
    third = Unit("llama3jit.ops.embed", "embed", "f32")
    found = Library([ADD, other, third], lambda *call: told.append(call))
    assert found.rung_of == {ADD: "shipped", other: "cache", third: "jit"}
    assert told[0] == (0, 1, "2 kernels were edited or added")


def truncate(folder):
    path = next(folder.glob("*.so"))
    path.write_bytes(path.read_bytes()[:-4096])


def own_up(folder):
    """Make the manifest describe the file that is there."""
    digest = hashlib.sha256(next(folder.glob("*.so")).read_bytes()).hexdigest()
    edit_manifest(folder, lambda m: m["targets"][host_target().name].update(sha256=digest))


HERE = host_target().name
BREAK = {
    "no folder": (shutil.rmtree, "there is no .*manifest.json"),
    "no manifest": (lambda f: (f / MANIFEST).unlink(), "there is no .*manifest.json"),
    "cut short": (lambda f: (f / MANIFEST).write_text('{"format": 1, '), "is not a manifest"),
    "no text": (lambda f: (f / MANIFEST).write_bytes(b"\xff\xfe\x00"), "is not a manifest"),
    "a list": (lambda f: (f / MANIFEST).write_text("[1]"), "is not a manifest"),
    "no targets": (lambda f: edit_manifest(f, lambda m: {"format": 1}), "is not a manifest"),
    "odd targets": (
        lambda f: edit_manifest(f, lambda m: m["targets"].update({HERE: ["x"]})),
        "is not a manifest",
    ),
    "odd units": (
        lambda f: edit_manifest(f, lambda m: m["targets"][HERE].update(units={"a:b:c:d": {}})),
        "is not a manifest",
    ),
    "another format": (
        lambda f: edit_manifest(f, lambda m: m.update(format=2)),
        "has format 2, this version reads 1",
    ),
    "another level": (
        lambda f: edit_manifest(f, lambda m: m.update(targets={"x86-64-v9": {}})),
        f"has code for x86-64-v9, this processor is {HERE}",
    ),
    "no library": (lambda f: next(f.glob("*.so")).unlink(), "cannot be read: No such file"),
    "a truncated library": (truncate, "is not the file that its manifest describes"),
    "another library": (
        lambda f: edit_manifest(f, lambda m: m["targets"][HERE].update(sha256="0" * 64)),
        "is not the file that its manifest describes",
    ),
    "no library at all": (
        lambda f: (next(f.glob("*.so")).write_bytes(b"text"), own_up(f)),
        "does not load",
    ),
    "symbols missing": (
        lambda f: edit_manifest(
            f,
            lambda m: m["targets"][HERE]["units"].update({"llama3jit.ops.rope:rope:": {"key": ""}}),
        ),
        "does not load.*rope",
    ),
}
ROPE = Unit("llama3jit.ops.rope", "rope")


@pytest.mark.parametrize("name", BREAK)
def test_broken_shipped_code_is_passed_over_and_said(monkeypatch, shipped, name):
    break_it, words = BREAK[name]
    wanted = [WALKER, ADD] + ([ROPE] if name == "symbols missing" else [])
    break_it(shipped)
    monkeypatch.setenv("LLAMA3JIT_KERNELS", str(shipped))
    with pytest.raises(CompileError, match=words):
        Library(wanted)
    # Not forced, the next rung has them, and whoever shows progress is told why.
    monkeypatch.setenv("LLAMA3JIT_KERNELS", "")
    monkeypatch.setattr(artifact, "SHIPPED", shipped)

    told = []

    def pretend(files, target, progress, why):
        told.append(why)
        raise CompileError(f"{len(files)} kernels would be compiled")

    monkeypatch.setattr(build, "build", pretend)
    with pytest.raises(CompileError, match=f"^{len(wanted)} kernels would be compiled"):
        Library(wanted)
    assert len(told) == 1
    rung_of, reasons = survey(wanted)
    assert set(rung_of.values()) == {"jit"}
    assert told[0] == reasons["shipped"]


def test_code_that_gives_wrong_results_is_not_used(monkeypatch, copy, tmp_path):
    """A library whose manifest says that it is this tree's, and which adds wrongly."""
    path = copy / "llama3jit/ops/add.py"
    text = path.read_text()
    path.write_text(text.replace("out[r, i] += x[r, i]", "out[r, i] += x[r, i] * 2"))
    code = (
        "import sys; from pathlib import Path; sys.path.append(sys.argv[2])\n"
        "from artifacts import *; from llama3jit.compile.targets import host_target\n"
        "make_artifact(Path(sys.argv[1]), host_target(), (WALKER, ADD))"
    )
    wrong = tmp_path / "wrong"
    helpers = str(sources.ROOT / "tests" / "compile")
    command = [sys.executable, "-c", code, str(wrong), helpers]
    environment = {"PYTHONPATH": str(copy), "PATH": os.environ["PATH"]}
    subprocess.run(command, cwd=copy, env=environment, check=True)
    edit_manifest(wrong, lambda m: m.update(sources=sources.everything()))
    monkeypatch.setenv("LLAMA3JIT_KERNELS", str(wrong))
    with pytest.raises(CompileError, match="gives wrong results on this processor"):
        Library([WALKER])
    assert "gives wrong results" in doctor._kernels()["not shipped"]


@pytest.fixture
def with_kernels(built, copy):
    """A copy of the tree in which `make kernels` was run."""
    shutil.copytree(built, copy / "llama3jit" / "_kernels")
    return copy


NAMES = " ".join(map(str, (ADD, SWIGLU)))


def test_a_package_with_kernels_needs_no_folder_and_no_compiler(one_op, with_kernels, tmp_path):
    (tmp_path / "file").write_text("")
    found = one_op(
        NAMES,
        with_kernels,
        LLAMA3JIT_CACHE=str(tmp_path / "file"),
        HOME="/nonexistent",
        PATH="/nonexistent",
    )
    assert set(found["rungs"].values()) == {"shipped"}
    assert (found["built"], found["told"], found["warnings"]) == (0, [], [])
    assert found["imported"] == []
    assert found["result"] == SUMS


# The file to edit, what to replace by what, which units that changes, the first op's result.
EDITS = {
    "an op": (
        "llama3jit/ops/add.py",
        ("out[r, i] += x[r, i]", "out[r, i] -= x[r, i]"),
        {str(ADD)},
        pytest.approx([1 - x for x in ROW], rel=1e-6),
    ),
    "a helper in another file": (
        "llama3jit/ops/exp.py",
        ("p = np.float32(1 / 5040)", "p = np.float32(0) * r\n    return p"),
        {str(SWIGLU)},
        SUMS,
    ),
    "nothing that matters": ("llama3jit/ops/rope.py", ("import", "import"), set(), SUMS),
    "how all are made": (
        "llama3jit/compile/entry.py",
        ("WORD = 8", "WORD = 2 * 4"),
        {str(WALKER), str(ADD), str(SWIGLU)},
        SUMS,
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_compiles_its_units_alone(one_op, with_kernels, name):
    file, (old, new), changed, result = EDITS[name]
    path = with_kernels / file
    path.write_text(path.read_text().replace(old, new, 1) + "\n# edited\n")
    found = one_op(NAMES, with_kernels)
    assert {unit for unit, rung in found["rungs"].items() if rung == "jit"} == changed
    assert set(found["rungs"].values()) <= {"jit", "shipped"}
    assert found["result"] == result
    if changed:
        total = len(changed)
        assert found["told"][0] == [0, total, f"{total} kernels were edited or added"]
    again = one_op(NAMES, with_kernels)
    assert {unit for unit, rung in again["rungs"].items() if rung == "cache"} == changed
    assert again["result"] == result


def test_units_of_a_module_that_is_gone_are_not_taken(monkeypatch, shipped):
    """Shipped by a version that had them."""
    edit_manifest(shipped, lambda m: m.update(sources="other"))
    found = open_artifact(shipped, host_target())
    assert all(map(found.has, UNITS))
    assert not found.has(ROPE)
    monkeypatch.setattr(sources, "path_of", lambda module: None)
    assert not any(map(open_artifact(shipped, host_target()).has, UNITS))


def test_writing_is_whole_and_says_what_it_lacks(shipped, monkeypatch, tmp_path):
    before = (shipped / MANIFEST).read_bytes()
    (tmp_path / "cut.o").write_bytes(b"x" * 100)
    with pytest.raises(CompileError, match="is cut short"):
        write_artifact(shipped, {host_target(): {ADD: tmp_path / "cut.o"}})
    (tmp_path / "odd.o").write_bytes(cache.sealed(b"no object"))
    with pytest.raises(CompileError, match="cannot link"):
        write_artifact(shipped, {host_target(): {ADD: tmp_path / "odd.o"}})
    assert (shipped / MANIFEST).read_bytes() == before
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CompileError, match="no C compiler to link with"):
        write_artifact(shipped, {host_target(): {ADD: tmp_path / "odd.o"}})


def test_without_a_linker_bare_objects_are_kept_and_loaded(one_op, tmp_path):
    environment = {"PATH": str(tmp_path), "CC": "", "LLAMA3JIT_KERNELS": "cache,jit"}
    environment["LLAMA3JIT_CACHE"] = str(tmp_path / "c")
    first = one_op(str(ADD), **environment)
    again = one_op(str(ADD), **environment)
    assert (first["built"], again["built"]) == (2, 0)
    assert first["result"] == again["result"] == SUMS
    kept = (tmp_path / "c" / "kernels").iterdir()
    assert {path.suffix for path in kept if path.name != "lock"} == {".o"}
    assert again["imported"] == ["llvmlite"]


def test_doctor_says_which_rung_and_why(monkeypatch, built):
    shown = doctor._kernels()
    assert set(shown) == {"jit", "not shipped"}
    assert "there is no" in shown["not shipped"]
    monkeypatch.setattr(artifact, "SHIPPED", built)
    # A CPU has no need of the portable swiglu, so it is not counted.
    assert doctor._kernels()["shipped"] == len({*UNITS} - {SWIGLU})
    monkeypatch.setenv("LLAMA3JIT_KERNELS", "nonsense")
    assert "expected shipped, cache, jit" in doctor._kernels()["problem"]
