"""Imports run one way, and importing the package is cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# A module imports its own part and those of lower rank, never one beside it.
RANKS = {
    "version": 0,
    "errors": 0,
    "checks": 1,
    "files": 2,
    "text": 3,
    "ops": 4,
    "kernels_cpu": 4,
    "kernels_cuda": 4,
    "model": 5,
    "compile": 6,
    "devices": 7,
    "engine": 8,
    "api": 9,
    "cli": 10,
}
# Beside api.py.
API = {
    "arguments",
    "background",
    "batch",
    "bench",
    "capture",
    "compare",
    "deferred",
    "doctor",
    "embedding",
    "generation",
    "guides",
    "installed",
    "openai",
    "opening",
    "overflow",
    "profile",
    "results",
    "scoring",
    "session",
    "session_file",
    "talk",
}
KERNELS = {"ops", "kernels_cpu", "kernels_cuda"}
COMPILERS = {"numba", "llvmlite"}


def part_of(module):
    """The part of the house that a dotted name belongs to; None outside of it."""
    names = module.split(".")
    if names[0] in KERNELS:
        return names[0]
    if names[0] != "llama3jit":
        return None
    name = names[1] if len(names) > 1 else "__init__"
    return "api" if name in API else name


def imports_of(path):
    """Dotted names of the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            if node.module in ("llama3jit", "kernels_cpu", "kernels_cuda"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def all_modules():
    for folder in ("llama3jit", "kernels_cpu", "kernels_cuda"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if module not in ("llama3jit.__init__", "llama3jit.__main__"):
                yield pytest.param(module.removesuffix(".__init__"), path, id=module)


MODULES = list(all_modules())


def test_every_module_has_a_rank():
    assert {part_of(param.values[0]) for param in MODULES} <= set(RANKS)


@pytest.mark.parametrize(("module", "path"), MODULES)
def test_imports_run_one_way(module, path):
    here = part_of(module)
    for name in imports_of(path):
        there = part_of(name)
        if there in (None, here, "__init__"):
            continue
        allowed = RANKS[there] < RANKS[here] or {here, there} <= KERNELS
        assert allowed, f"{module} imports {name}"


@pytest.mark.parametrize(("module", "path"), MODULES)
def test_ops_and_kernels_stand_alone(module, path):
    if part_of(module) not in KERNELS:
        return
    allowed = COMPILERS | {"numpy"} | set(sys.stdlib_module_names)
    for name in imports_of(path):
        assert name.split(".")[0] in allowed or part_of(name) in KERNELS, f"{module} imports {name}"


@pytest.mark.parametrize(("module", "path"), MODULES)
def test_compilers_are_imported_by_kernels_and_compile_alone(module, path):
    if part_of(module) in KERNELS | {"compile"}:
        return
    assert not COMPILERS & {name.split(".")[0] for name in imports_of(path)}


@pytest.mark.parametrize(("module", "path"), MODULES)
def test_the_engine_knows_no_text(module, path):
    if part_of(module) == "engine":
        assert not [name for name in imports_of(path) if part_of(name) in ("text", "files")]


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def test_importing_the_package_imports_nothing_heavy():
    loaded = run_python("import sys, llama3jit; print(*sys.modules)").split()
    assert "llama3jit" in loaded
    heavy = {"numpy", "numba", "llvmlite", "tokenizers", "jinja2", "typer", "rich", "httpx"}
    assert not heavy & set(loaded)


FACES = (
    "llama3jit.api",
    "llama3jit.cli.app",
    "llama3jit.cli.generate",
    "llama3jit.cli.repl.commands",
    "llama3jit.cli.repl.loop",
)


@pytest.mark.parametrize("module", FACES)
def test_the_faces_import_neither_numpy_nor_numba(module):
    loaded = run_python(f"import sys, {module}; print(*sys.modules)").split()
    assert not {"numpy", "numba", "rich", "prompt_toolkit", "wcwidth"} & set(loaded)


def test_importing_the_package_takes_under_20_ms():
    resource = pytest.importorskip("resource")

    def cost(code):
        """Processor time of a child, the least of several: what else runs does not count."""
        times = []
        for _ in range(7):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            run_python(code)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        return min(times)

    assert cost("import llama3jit") - cost("pass") < 0.020


def test_the_public_names_are_there():
    import llama3jit

    for name in llama3jit.__all__:
        assert getattr(llama3jit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        llama3jit.nonsense  # noqa: B018
