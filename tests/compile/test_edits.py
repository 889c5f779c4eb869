"""An edited kernel, helper or form is never served stale, and nothing is built twice."""

import ast

import pytest

from llama3jit.compile import sources
from llama3jit.compile.cuda.units import every_unit as cuda_units
from llama3jit.compile.link import linker
from llama3jit.compile.sources import closure, key
from llama3jit.compile.targets import host_target
from llama3jit.compile.units import Unit, every_unit

# The unit, the file to edit, what to replace by what, what that does to the result.
EDITS = {
    "a kernel": (
        "llama3jit.ops.add:add:",
        "llama3jit/ops/add.py",
        ("out[r, i] += x[r, i]", "out[r, i] -= x[r, i]"),
        lambda before: [2 - value for value in before],
    ),
    "a helper in another file": (
        "llama3jit.ops.swiglu:swiglu:",
        "llama3jit/ops/exp.py",
        ("p = np.float32(1 / 5040)", "p = np.float32(0) * r\n    return p"),
        lambda before: [value**2 for value in _row()],
    ),
    "a form by name": (
        "llama3jit.ops.kv_append:kv_append:f16",
        "kernels_cpu/bits.py",
        ("return _float_to_half(x)", "return _float_to_half(x * 0 + 1)"),
        lambda before: [0x3C00] * 24,
    ),
}


def _row():
    return [-2 + 4 * i / 23 for i in range(24)]


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_shows_in_the_next_run(one_op, copy, name, monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path / "cache"))  # where no edit is known yet
    unit, file, (old, new), change = EDITS[name]
    before = one_op(unit, copy)
    again = one_op(unit, copy)
    assert again["built"] == 0
    assert again["result"] == before["result"]
    assert again["imported"] == ([] if linker() else ["llvmlite"]), "loading needs no compiler"

    path = copy / file
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    after = one_op(unit, copy)
    assert after["built"] >= 1
    assert after["stem"] != before["stem"]
    assert after["result"] == pytest.approx(change(before["result"]), rel=1e-6)

    path.write_text(text)
    back = one_op(unit, copy)
    assert (back["built"], back["result"]) == (0, before["result"])


def test_what_a_unit_depends_on():
    reached = closure("llama3jit.ops.attention")
    assert reached >= {
        "llama3jit.ops.attention",
        "llama3jit.ops.bits",
        "llama3jit.ops.kv_dtypes",
        "llama3jit.ops.op",
        "llama3jit.ops.faces",
        "llama3jit.ops.signature",
        "kernels_cpu.bits",
        "kernels_cpu.memory",
        "llama3jit.compile.entry",
        "llama3jit.compile.builder",
    }
    assert "kernels_cpu.matmul" not in reached
    attention, matmul = closure("kernels_cpu.attention"), closure("kernels_cpu.matmul")
    assert {"kernels_cpu.simd", "kernels_cpu.vectors", "llama3jit.ops.exp"} <= attention
    assert {"kernels_cpu.features", "kernels_cpu.values", "llama3jit.ops.pack"} <= matmul
    # An edit of one format's table rebuilds no attention.
    assert not {"kernels_cpu.values", "kernels_cpu.tiles", "kernels_cpu.scales"} & attention


def test_a_key_names_the_unit_the_target_and_the_tools(monkeypatch):
    unit, target = Unit("llama3jit.ops.kv_append", "kv_append", "f16"), host_target()
    keys = {
        key(unit, target),
        key(Unit("llama3jit.ops.kv_append", "kv_append", "f32"), target),
        key(unit, type(target)(target.name, target.cpu, target.features[:-1], target.tuning)),
        key(unit, type(target)(target.name, "skylake", target.features, target.tuning)),
    }
    mine = sources.source_key(unit, target)
    monkeypatch.setattr(sources, "tool_version", lambda name: "0.0")
    keys.add(key(unit, target))
    monkeypatch.setattr(sources.sys.implementation, "cache_tag", "cpython-399")
    keys.add(key(unit, target))
    assert len(keys) == 6
    assert sources.source_key(unit, target) == mine, "shipped code has its own tools"


def _named(module):
    """What the syntax tree of a module names of ours, as the plain reading of it may not miss."""
    package = module.rpartition(".")[0]
    for node in ast.walk(ast.parse(sources.content(module))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports from {package} by a dot"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.partition(":")[0]


@pytest.mark.parametrize(("side", "units"), [("cpu", every_unit()), ("cuda", cuda_units())])
def test_no_import_and_no_form_is_missed(side, units):
    modules = set().union(*(closure(unit.module, side) for unit in units))
    assert len(modules) > 30
    packages = "llama3jit.ops.", f"{sources.SIDES[side].kernels}."
    for module in modules:
        ours = {n for n in _named(module) if n.startswith(packages)}
        files = {n for n in ours if sources.path_of(n) and not n.endswith(".")}
        assert files - {module} <= sources.reached(module, side)


IMPORTS = [
    "from kernels_cpu import bits, exp",
    "from kernels_cpu import (\n    bits,  # halves\n    exp as e,\n)",
    "from kernels_cpu import bits, \\\n    exp",
    "def later():\n    import kernels_cpu.bits\n    from kernels_cpu.exp import exp",
    "import kernels_cpu.bits as b, kernels_cpu.exp",
    "form = 'kernels_cpu.bits:rint', 'kernels_cpu.exp:exp'",
]


@pytest.mark.parametrize("source", IMPORTS)
def test_every_form_of_an_import_is_seen(source, monkeypatch):
    monkeypatch.setattr(sources, "content", lambda module: source.encode())
    found = sources.reached.__wrapped__("kernels_cpu.new", "cpu")
    assert found == {"kernels_cpu.bits", "kernels_cpu.exp"}
    assert sources.reached.__wrapped__("kernels_cuda.new", "cuda") == set()
