"""Processor levels: which one a host gets, what their objects hold, and that they agree."""

import re
import shutil
import subprocess
from functools import cache

import numpy as np
import pytest
from format_blocks import extreme_weight, random_weight
from op_faces import int8_activations, machine, packed, run_compiled, unit_of
from paged import QUANTS, paged

from llama3jit.compile import cache as object_cache
from llama3jit.compile import library, targets, tiles
from llama3jit.compile.library import Library
from llama3jit.compile.targets import LEVELS, V3, V4, host_target, usable_features
from llama3jit.compile.units import WALKER
from llama3jit.devices.cpu.pool import Pool
from llama3jit.files.formats import FORMATS

NAMES = [level.name for level in LEVELS]
HOST = host_target().name


def target_of(monkeypatch, features, machine="x86_64"):
    """The target of a host whose features LLVM tells, since /proc/cpuinfo does not."""
    import llvmlite.binding as llvm

    monkeypatch.setattr(targets.platform, "machine", lambda: machine)
    monkeypatch.setattr(targets, "cpu_flags", lambda path: frozenset())
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: dict.fromkeys(features, True))
    monkeypatch.setattr(tiles, "usable", lambda: True)
    return host_target.__wrapped__()


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ([*V4, "avx512vnni", "amx-int8", "amx-tile"], "x86-64-v4-amx"),
        ([*V4, "avx512vnni", "avxvnni", "amx-int8"], "x86-64-v4-vnni"),
        ([*V4, "avx512vnni"], "x86-64-v4-vnni"),
        ([*V4, "avxvnni"], "x86-64-v3-vnni"),
        (V4, "x86-64-v3"),
        ([*V3, "avxvnni"], "x86-64-v3-vnni"),
        ([*V3, "avx512vnni", "avx512f"], "x86-64-v3"),
        (V3, "x86-64-v3"),
    ],
)
def test_the_best_level_that_the_host_has_in_full(monkeypatch, features, expected):
    assert target_of(monkeypatch, features).name == expected
    assert target_of(monkeypatch, features, "AMD64").name == expected


@pytest.mark.parametrize("lost", V3)
def test_one_feature_less_is_no_level(monkeypatch, lost):
    found = target_of(monkeypatch, [name for name in V3 if name != lost])
    assert found.name.startswith("native-x86_64-")
    assert f"+{lost}" not in found.flags.split(",")


def test_features_that_are_off_do_not_count(monkeypatch):
    import llvmlite.binding as llvm

    off = {**dict.fromkeys(V4, False), **dict.fromkeys(V3, True)}
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(targets, "cpu_flags", lambda path: frozenset())
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: off)
    assert host_target.__wrapped__().name == "x86-64-v3"


# As Linux writes them: "abm" for lzcnt, "bmi1", underscores.
CPUINFO_V3 = "fpu sse4_2 popcnt movbe avx avx2 f16c fma bmi1 bmi2 abm"
CPUINFO = {
    "v3": (CPUINFO_V3, "x86-64-v3"),
    "no abm": (CPUINFO_V3.replace(" abm", ""), None),
    "avx_vnni": (f"{CPUINFO_V3} avx_vnni", "x86-64-v3-vnni"),
    "v4": (
        f"{CPUINFO_V3} avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni amx_tile",
        "x86-64-v4-vnni",
    ),
    "v4 whose registers the system does not save": (f"{CPUINFO_V3} avx512_vnni", "x86-64-v3"),
    "nothing": ("fpu", None),
}


@pytest.mark.parametrize("name", CPUINFO)
def test_what_linux_says_of_the_processor(monkeypatch, tmp_path, name):
    flags, expected = CPUINFO[name]
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor\t: 0\nvmx flags\t: x\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    found = targets.best_level(targets.host_features(path))
    assert (found and found.name) == expected


@pytest.mark.skipif(HOST not in NAMES, reason="not an x86-64 with AVX2")
def test_linux_and_llvm_agree_about_this_processor(tmp_path):
    known = {feature for level in LEVELS for feature in level.features}
    by_llvm = targets.host_features(tmp_path / "missing")
    assert targets.host_features() == by_llvm & known


def test_other_processors_are_taken_as_they_are(monkeypatch):
    found = target_of(monkeypatch, ["neon", "dotprod"], "aarch64")
    assert found.name.startswith("native-aarch64-")
    assert found.flags == "+dotprod,+neon"


def test_flags_spell_everything_out():
    for level in LEVELS:
        assert set(level.flags.split(",")) == {*(f"+{f}" for f in level.features), *level.tuning}


TUNED = {
    "x86-64-v3": [
        ("matmul_int8", "q4_0"),
        ("matmul_int8", "q4_1"),
        ("matmul_int8", "q8_0"),
        ("matmul_int8", "q2_k"),
        ("matmul_int8", "q4_k"),
        ("matmul_int8", "q6_k"),
        ("matmul_int8", "iq4_xs"),
        ("matmul", "q4_1"),
        ("matmul", "q5_0"),
        ("matmul", "q3_k"),
        ("matmul", "f16"),
        ("matmul", "bf16"),
        ("quantize", ""),
        ("attention", "f16"),
        ("attention_chunks", "f16"),
        ("attention", "q8_0"),
        ("attention", "q4_0"),
        ("attention_chunks", "q4_0"),
        ("kv_append", "q8_0"),
        ("kv_append", "q4_0"),
        ("hadamard", ""),
        ("rmsnorm", ""),
        ("swiglu", ""),
    ],
    "x86-64-v4-vnni": [
        ("matmul_int8", "q4_0"),
        ("matmul_int8", "q5_1"),
        ("matmul_int8", "q2_k"),
        ("matmul_int8", "q6_k"),
        ("matmul_int8", "iq4_xs"),
    ],
    "x86-64-v3-vnni": [
        ("matmul_int8", "q4_1"),
        ("matmul_int8", "q8_0"),
        ("matmul_int8", "q6_k"),
    ],
}
CASES = [(level, *unit) for level, units in TUNED.items() for unit in units]


@cache
def level_of(name):
    """The library of a level's units, or None where the host lacks it."""
    level = next(level for level in LEVELS if level.name == name)
    if not targets.usable_features().issuperset(level.features):
        return None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "host_target", lambda: level)
        return Library([unit_of(*unit, "tuned") for unit in TUNED[name]])


def operands_of(name, variant):
    """Fresh operands; the outputs come first."""
    rng = np.random.default_rng(11)
    if name == "swiglu":
        gate, up = rng.standard_normal((2, 5, 300)).astype(np.float32) * 4
        return {"out": np.zeros((5, 300), np.float32), "gate": gate, "up": up}
    if name == "hadamard":
        return {"x": rng.standard_normal((5, 3, 96)).astype(np.float32)}
    head_dim = 96 if variant in QUANTS else 80
    if name == "kv_append":
        pages = paged([(0, 3), (63, 2), (600, 9)], 2, head_dim, variant)
        caches = {name: np.zeros_like(getattr(pages, name)) for name in ("k_cache", "v_cache")}
        return {**caches, "k": pages.k, "v": pages.v, **pages.where}
    if name == "rmsnorm":
        x = rng.standard_normal((5, 589)).astype(np.float32)
        return {"out": np.zeros_like(x), "x": x, "weight": x[0].copy(), "eps": 1e-5}
    if name.startswith("attention"):
        pages = paged([(0, 3), (63, 2), (600, 9)], 2, head_dim, variant)
        q = rng.standard_normal((14, 6, head_dim)).astype(np.float32)
        outputs = {"out": np.zeros_like(q)}
        if name == "attention_chunks":
            outputs = {
                "sums": np.zeros((16, 6, 2, head_dim), np.float32),
                "weights": np.zeros((16, 6, 2, 2), np.float32),
            }
        caches = {"k_cache": pages.k_cache, "v_cache": pages.v_cache}
        return {**outputs, "q": q, **caches, **pages.where, "scale": 0.11, "window": 170}
    block = FORMATS[variant.upper()].block_size if variant else 32
    k = 3 * max(block, 32)
    x = rng.standard_normal((103, k)).astype(np.float32)
    if name == "quantize":
        outputs = int8_activations(np.zeros((103, k), np.int8), np.zeros((103, 3), np.float32))
        return {**outputs, "x": x}
    weight = random_weight(rng, variant, 49, k)
    if block > 1:
        weight[:20] = extreme_weight(rng, variant, 20, k)
    out = {"out": np.zeros((103, 49), np.float32), "weight": packed(weight, variant)}
    if name == "matmul":
        return {**out, "x": x}
    xq = rng.integers(-127, 128, (103, k)).astype(np.int8)
    xq[:3] = np.array([[127], [-127], [-128]])
    return {**out, **int8_activations(xq, rng.random((103, k // 32)).astype(np.float32))}


@pytest.mark.parametrize(("level", "name", "variant"), CASES)
@pytest.mark.skipif(HOST not in NAMES, reason="not an x86-64 with AVX2")
def test_levels_agree_to_the_bit(level, name, variant):
    mine = level_of(level)
    if mine is None:
        pytest.skip(f"this host is no {level}")
    unit = unit_of(name, variant, "tuned")
    host, pool = machine()
    expected, found = operands_of(name, variant), operands_of(name, variant)
    run_compiled(host, pool, unit, expected)
    run_compiled(mine, pool, unit, found)
    for key in expected:
        assert np.array_equal(found[key], expected[key]), key
    assert any(np.any(value) for value in list(expected.values())[:1])


PORTABLE = [("matmul", "iq2_xxs"), ("rmsnorm", "")]


@pytest.mark.parametrize("name", TUNED)
@pytest.mark.skipif(HOST not in NAMES, reason="not an x86-64 with AVX2")
def test_portable_ops_agree_closely(name, monkeypatch):
    """They are summed in vectors of the level's own width."""
    level = next(level for level in LEVELS if level.name == name)
    if not usable_features().issuperset(level.features):
        pytest.skip(f"this host is no {name}")
    pool = Pool(1, Library([WALKER]))
    units = [unit_of(*unit, "cpu") for unit in PORTABLE]
    expecting = Library(units)
    monkeypatch.setattr(library, "host_target", lambda: level)
    mine = Library(units)
    rng = np.random.default_rng(4)
    x = rng.standard_normal((7, 768)).astype(np.float32)
    weight = random_weight(rng, "iq2_xxs", 49, 768)
    for unit, inputs, n in (
        (units[0], {"weight": weight, "x": x}, 49),
        (units[1], {"x": x, "weight": x[0].copy(), "eps": 1e-5}, 768),
    ):
        expected, found = np.zeros((2, 7, n), np.float32)
        run_compiled(expecting, pool, unit, {"out": expected, **inputs})
        run_compiled(mine, pool, unit, {"out": found, **inputs})
        assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
        assert expected.any()
    pool.stop()


def disassembled(level, name, variant, folder):
    tool = shutil.which("objdump")
    if tool is None:
        pytest.skip("no objdump")
    mine = next(target for target in LEVELS if target.name == level)
    code = object_cache.unsealed(object_cache.find(unit_of(name, variant, "tuned"), mine))
    (folder / "code").write_bytes(code)
    command = [tool, "-d", "-w", str(folder / "code")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(("level", "name", "variant"), [case for case in CASES if "v3" in case[0]])
def test_v3_code_is_v3_code(tmp_path, level, name, variant):
    if HOST not in NAMES or level_of(level) is None:
        pytest.skip(f"this host is no {level}")
    text = disassembled(level, name, variant, tmp_path)
    assert "ymm" in text
    assert "zmm" not in text
    # In 64-bit code the byte 62 begins an EVEX instruction, and those are AVX-512's alone.
    assert not re.search(r"^\s*[0-9a-f]+:\s+62 ", text, re.MULTILINE)
    if name == "matmul_int8":
        assert ("vpdpbusd" in text) == (level == "x86-64-v3-vnni")


@pytest.mark.skipif("x86-64-v4" not in HOST, reason="this host is no x86-64-v4 with VNNI")
def test_v4_code_uses_whole_registers_and_vnni(tmp_path):
    machine()
    text = disassembled(HOST, "matmul_int8", "q8_0", tmp_path)
    assert re.search(r"vpdpbusd .*zmm", text)
    assert ("tdpbssd" in text) == ("amx" in HOST)
    assert "ymm" not in re.sub(r"vcvtph2ps.*|vmovdq.*|vmovup.*", "", text)
