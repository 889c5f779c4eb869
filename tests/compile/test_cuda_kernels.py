"""Every GPU kernel becomes a cubin for every target, with no GPU, and takes what it may take."""

import importlib.util

import pytest

from llama3jit.compile import cache, shipping
from llama3jit.compile.cuda import artifact
from llama3jit.compile.cuda.library import find_code
from llama3jit.compile.cuda.resources import Resources, resources
from llama3jit.compile.cuda.targets import CUBINS, PTX, TARGETS, targets_for
from llama3jit.compile.cuda.units import (
    Chip,
    every_unit,
    is_tuned,
    portable_units,
    suits,
    symbol,
    tuned_unit,
)
from llama3jit.compile.units import Unit
from llama3jit.errors import CompileError, InvalidArgumentError

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None,
    reason="numba-cuda is not installed (pip install 'llama3jit[cuda-jit]')",
)
ADD = Unit("llama3jit.ops.add", "add")
ADD_BIAS = Unit("llama3jit.ops.add", "add_bias")
SOME = [
    ADD,
    Unit("llama3jit.ops.attention", "attention", "f16"),
    Unit("llama3jit.ops.attention", "attention", "q4_0"),
    Unit("llama3jit.ops.hadamard", "hadamard"),
    Unit("llama3jit.ops.kv_append", "kv_append", "f32"),
    Unit("llama3jit.ops.kv_append", "kv_append", "q8_0"),
    Unit("llama3jit.ops.matmul", "matmul", "q6_k"),
    Unit("llama3jit.ops.matmul", "matmul", "iq2_xxs"),
    Unit("llama3jit.ops.rope", "rope_angles"),
]
SM_90A = next(target for target in TARGETS if target.name == "sm_90a")
# sin and cos of large angles keep the digits of 2/pi in memory.
STACK = {"rope_angles": 64}
REGISTERS_OF_A_MULTIPROCESSOR = 65536
ELF, EM_CUDA = b"\x7fELF", (190).to_bytes(2, "little")


def check_cubin(unit, target):
    """The kernel is there under its name, and takes neither spills nor a stack."""
    from llama3jit.compile.cuda.builder import build

    built = build(unit, target)
    assert built.code[:4] == ELF
    assert built.code[18:20] == EM_CUDA
    assert symbol(unit).encode() in built.code
    taken = resources(built.log)
    assert taken.registers <= 255
    assert taken.spilled_bytes == 0, f"{unit} for {target.name}: {taken}"
    if not is_tuned(unit):
        assert taken.stack_bytes <= STACK.get(unit.op, 0), f"{unit} for {target.name}: {taken}"
        # Four blocks of 256 threads at once, or more.
        assert taken.registers * 4 * 256 <= REGISTERS_OF_A_MULTIPROCESSOR * 4
    return taken


@needs_compiler
@pytest.mark.parametrize("unit", SOME, ids=str)
def test_some_kernels_for_hopper(unit):
    check_cubin(unit, SM_90A)


@needs_compiler
@pytest.mark.parametrize("target", CUBINS, ids=lambda target: target.name)
def test_some_kernel_for_every_target(target):
    check_cubin(Unit("llama3jit.ops.matmul", "matmul", "q6_k"), target)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("target", CUBINS, ids=lambda target: target.name)
@pytest.mark.parametrize("unit", every_unit(), ids=str)
def test_every_kernel_for_every_target(unit, target):
    if suits(unit, target.capability):
        check_cubin(unit, target)


@pytest.mark.parametrize(
    ("op", "variant", "capabilities"),
    [
        ("matmul_halves", "q4_0:128", [(9, 0)]),
        ("matmul_int8", "q4_0:1", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]),
        ("rmsnorm", "", [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]),
    ],
)
def test_which_devices_a_tuned_kernel_is_for(op, variant, capabilities):
    """An instruction that a device lacks may be left out, and the rest would give nonsense."""
    unit = next(unit for unit in every_unit() if (unit.op, unit.variant) == (op, variant))
    every = [(7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]
    assert [capability for capability in every if suits(unit, capability)] == capabilities
    assert all((unit in every_unit(c)) == (c in capabilities) for c in every)


def test_a_chip_without_a_kernel_takes_none():
    dims = {"T": 100, "N": 256, "K": 256}
    chips = [Chip(capability, 100) for capability in ((7, 5), (8, 6), (9, 0), (10, 0))]
    int8 = [tuned_unit("matmul_int8", "q8_0", dims, chip) for chip in chips]
    assert [unit is not None for unit in int8] == [False, True, True, True]
    halves = [tuned_unit("matmul_halves", "q8_0", dims, chip) for chip in chips]
    assert [unit is not None for unit in halves] == [False, False, True, False]


@needs_compiler
def test_ptx():
    from llama3jit.compile.cuda.builder import build

    text = build(SOME[1], PTX).code.decode()
    assert ".target sm_80" in text
    assert f".visible .entry {symbol(SOME[1])}(" in text
    assert text.count(".entry") == 1


@pytest.mark.parametrize(
    ("capability", "names"),
    [
        ((7, 0), []),
        ((7, 5), ["sm_75"]),
        ((8, 0), ["sm_80", "compute_80"]),
        ((8, 7), ["sm_86", "sm_80", "compute_80"]),
        ((8, 9), ["sm_89", "sm_86", "sm_80", "compute_80"]),
        ((9, 0), ["sm_90a", "compute_80"]),
        ((10, 3), ["sm_100", "compute_80"]),
        ((11, 0), ["compute_80"]),
        ((12, 1), ["sm_120", "compute_80"]),
    ],
)
def test_what_a_device_takes(capability, names):
    assert [target.name for target in targets_for(capability)] == names


def test_resources():
    log = (
        "ptxas info    : Function properties for f\n"
        "ptxas         .     40 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 52 registers, used 1 barriers\n"
        "info    : used 52 registers, 0 stack, 1024 bytes smem, 576 bytes cmem[0], 16 bytes lmem"
    )
    assert resources(log) == Resources(52, 40, 12, 16, 1024)
    with pytest.raises(ValueError, match="does not say"):
        resources("nothing")


def test_every_portable_kernel_has_a_name_of_its_own():
    assert len({symbol(unit) for unit in every_unit()}) == len(every_unit())
    assert len(portable_units()) > 60


@pytest.fixture
def shipped(tmp_path):
    """A folder with two images that are none, for two targets."""
    images = {ADD: b"the first", ADD_BIAS: b"and the second"}
    built = {}
    for target in (SM_90A, PTX):
        built[target] = {}
        for unit, image in images.items():
            path = tmp_path / f"{unit.stem}-{target.name}"
            cache.write_sealed(path, image + target.name.encode())
            built[target][unit] = path
    from llama3jit.compile.artifact import write_artifact

    write_artifact(tmp_path / "shipped", {}, built)
    return tmp_path / "shipped"


def test_shipped_images_are_read_back(shipped):
    assert artifact.read_images(shipped, SM_90A, [ADD_BIAS, SOME[1]]) == {
        ADD_BIAS: b"and the secondsm_90a"
    }
    assert artifact.read_images(shipped, PTX, [ADD]) == {ADD: b"the firstcompute_80"}
    with pytest.raises(CompileError, match="no GPU kernels for sm_75"):
        artifact.read_images(shipped, CUBINS[0], [ADD])
    with pytest.raises(CompileError, match=r"there is no .*manifest"):
        artifact.read_images(shipped / "nowhere", SM_90A, [ADD])


def test_an_altered_file_is_not_used(shipped):
    (shipped / "llama3jit-sm_90a.cubins").write_bytes(b"other")
    with pytest.raises(CompileError, match="not the file that its manifest describes"):
        artifact.read_images(shipped, SM_90A, [ADD])


def test_the_ladder(shipped, monkeypatch):
    monkeypatch.setenv("LLAMA3JIT_KERNELS", str(shipped))
    code = find_code([ADD, ADD_BIAS], (9, 0))
    assert code.images == {ADD: b"the firstsm_90a", ADD_BIAS: b"and the secondsm_90a"}
    assert set(code.rung_of.values()) == {"shipped"}
    newer = find_code([ADD], (11, 0))
    assert newer.is_ptx == {ADD: True}
    with pytest.raises(CompileError, match=r"1 GPU kernels \(.*rope_angles.*for sm_90a are not"):
        find_code([SOME[-1]], (9, 0))


def test_without_a_compiler_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA3JIT_KERNELS", "cache,jit")
    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path))
    monkeypatch.setattr("llama3jit.compile.cuda.library.find_spec", lambda name: None)
    with pytest.raises(CompileError, match=r"pip install 'llama3jit\[cuda-jit\]'"):
        find_code([ADD], (9, 0))


@needs_compiler
def test_what_is_compiled_once_is_found_again(monkeypatch, tmp_path):
    monkeypatch.setenv("LLAMA3JIT_KERNELS", "cache,jit")
    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path))
    cache.folder.cache_clear()
    first = find_code([ADD], (8, 9))
    assert first.rung_of == {ADD: "jit"}
    again = find_code([ADD], (8, 9))
    assert again.rung_of == {ADD: "cache"}
    assert again.images == first.images
    cache.folder.cache_clear()


def test_targets_by_name():
    assert shipping.targets_by_name(["cuda"]) == list(TARGETS)
    assert shipping.targets_by_name(["sm_89", "compute_80"]) == [CUBINS[3], PTX]
    with pytest.raises(InvalidArgumentError, match=r"expected .*sm_120.*native, all or cuda"):
        shipping.targets_by_name(["sm_42"])
