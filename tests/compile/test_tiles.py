"""Tile registers (AMX): asked for, tried in another process, remembered."""

import sys

import pytest

from llama3jit.compile import targets, tiles
from llama3jit.compile.targets import V4

CPUINFO = "processor\t: 0\nmodel name\t: Some\ncpu MHz\t\t: {mhz}\nmicrocode\t: {microcode}\n\n"


@pytest.fixture
def host(monkeypatch, tmp_path):
    """A host that hands tile registers out; `host(outcome, ...)` asks for them and gives what was
    found and how often they were tried."""
    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tiles.sys, "platform", "linux")
    monkeypatch.setattr(tiles, "permitted", lambda: True)
    tried = []

    def ask(outcome, mhz=1, microcode=1):
        path = tmp_path / "cpuinfo"
        path.write_text(CPUINFO.format(mhz=mhz, microcode=microcode))
        monkeypatch.setattr(tiles, "try_them", lambda: tried.append(outcome) or outcome)
        return tiles.usable(path), len(tried)

    return ask


@pytest.mark.parametrize("outcome", [True, False])
def test_they_are_tried_once_on_a_processor(host, outcome):
    assert host(outcome) == (outcome, 1)
    assert host(not outcome, mhz=2) == (outcome, 1)
    assert host(not outcome, microcode=2) == (not outcome, 2)


def test_an_outcome_that_cannot_be_read_is_found_again(host, tmp_path):
    host(True)
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_text("")
    assert host(False) == (False, 2)
    assert kept.read_text() == "no"


def test_where_nothing_can_be_kept_they_are_tried_again(host, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert host(True) == (True, 1)
    assert host(True) == (True, 2)


def test_a_system_that_refuses_is_not_tried(host, monkeypatch):
    monkeypatch.setattr(tiles, "permitted", lambda: False)
    assert host(True) == (False, 0)


@pytest.mark.parametrize(
    ("program", "good"),
    [
        ("", True),
        ("raise SystemExit(1)", False),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", False),
        ("import time; time.sleep(60)", False),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_what_the_other_process_can_come_to(monkeypatch, tmp_path, program, good):
    probe = tmp_path / "probe.py"
    probe.write_text(program)
    monkeypatch.setattr(tiles, "PROBE", probe)
    monkeypatch.setattr(tiles, "PROBE_S", 2.0)
    assert tiles.try_them() == good


@pytest.mark.parametrize("works", [True, False])
def test_a_host_whose_tile_registers_fault_has_the_level_below(monkeypatch, works):
    monkeypatch.setattr(targets.platform, "machine", lambda: "x86_64")
    present = frozenset({*V4, "avx512vnni", *tiles.FEATURES})
    monkeypatch.setattr(targets, "host_features", lambda: present)
    monkeypatch.setattr(tiles, "usable", lambda: works)
    found = targets.host_target.__wrapped__().name
    assert found == ("x86-64-v4-amx" if works else "x86-64-v4-vnni")


def test_the_probe_agrees_with_the_processor():
    if not targets.host_features() >= tiles.FEATURES:
        assert not tiles.permitted() or not tiles.try_them()
    elif not tiles.permitted():
        assert not tiles.try_them()
