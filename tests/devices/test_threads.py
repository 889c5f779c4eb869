"""How many threads: affinity, control groups of both versions, physical cores."""

import os

import pytest

from llama3jit.devices import cgroup
from llama3jit.devices.cpu import threads
from llama3jit.errors import InvalidArgumentError


def tree(root, files):
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "cgroup").mkdir(exist_ok=True)
    return root / "cgroup"


def member(root, text):
    path = root / "self"
    path.write_text(text)
    return path


# Files of the tree, /proc/self/cgroup, processors' worth of time.
QUOTAS = {
    "no groups": ({}, "", None),
    "version 2": ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
    "max": ({"cpu.max": "max 100000\n"}, "0::/\n", None),
    "nested": (
        {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000", "cpu.max": "800000 100000"},
        "0::/a/b\n",
        3.0,
    ),
    "the leaf is smallest": (
        {"a/b/cpu.max": "50000 100000", "a/cpu.max": "300000 100000"},
        "0::/a/b\n",
        0.5,
    ),
    "a parent is smallest": (
        {"a/b/cpu.max": "400000 100000", "a/cpu.max": "150000 100000", "cpu.max": "max 100000"},
        "0::/a/b\n",
        1.5,
    ),
    "a path of the host": ({"cpu.max": "200000 100000"}, "0::/docker/0123abc\n", 2.0),
    "above the root": ({"cpu.max": "200000 100000"}, "0::/../../other\n", 2.0),
    "version 1": (
        {
            "cpu,cpuacct/job/cpu.cfs_quota_us": "250000",
            "cpu,cpuacct/job/cpu.cfs_period_us": "100000",
        },
        "5:cpu,cpuacct:/job\n4:memory:/job\n",
        2.5,
    ),
    "version 1, by name": (
        {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"},
        "5:cpuacct,cpu:/job\n",
        4.0,
    ),
    "version 1, none": (
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        "5:cpu:/\n",
        None,
    ),
    "both": (
        {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000", "cpu.max": "max 1"},
        "5:cpu:/\n0::/\n",
        4.0,
    ),
    "malformed": ({"cpu.max": "lots of time"}, "0::/\n", None),
    "empty": ({"cpu.max": ""}, "0::/\n", None),
    "no period": ({"cpu.max": "100000 0"}, "0::/\n", None),
    "zero": ({"cpu.max": "0 100000"}, "0::/\n", None),
    "odd lines": ({"cpu.max": "200000 100000"}, "nonsense\n\n0::/\n", 2.0),
    "malformed below": ({"a/cpu.max": "x", "cpu.max": "200000 100000"}, "0::/a\n", 2.0),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_cpu_quota(tmp_path, name):
    files, text, expected = QUOTAS[name]
    assert cgroup.cpu_quota(tree(tmp_path, files), member(tmp_path, text)) == expected


def test_no_membership_at_all(tmp_path):
    assert cgroup.cpu_quota(tmp_path, tmp_path / "missing") is None
    assert cgroup.memory_left(tmp_path, tmp_path / "missing") is None


def memory(limit, usage, stat):
    return {"memory.max": limit, "memory.current": usage, "memory.stat": stat}


MEMORY = {
    "version 2": (memory("1000", "700", "anon 1\ninactive_file 50\n"), "0::/\n", 350),
    "max": (memory("max", "700", "inactive_file 50"), "0::/\n", None),
    "a parent": (
        {
            **{f"a/{k}": v for k, v in memory("max", "1", "anon 1").items()},
            **memory("1000", "900", "anon 3"),
        },
        "0::/a\n",
        100,
    ),
    "version 1": (
        {
            "memory/job/memory.limit_in_bytes": "5000",
            "memory/job/memory.usage_in_bytes": "4500",
            "memory/job/memory.stat": "total_inactive_file 100\ninactive_file 1",
        },
        "4:memory:/job\n",
        600,
    ),
    "version 1, none": (
        {
            "memory/memory.limit_in_bytes": str(2**63 - 4096),
            "memory/memory.usage_in_bytes": "4500",
            "memory/memory.stat": "",
        },
        "4:memory:/\n",
        None,
    ),
    "malformed": (memory("much", "700", "inactive_file 50"), "0::/\n", None),
    "malformed stat": (memory("1000", "700", "a b c\n"), "0::/\n", None),
    "no usage": ({"memory.max": "1000"}, "0::/\n", None),
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_left(tmp_path, name):
    files, text, expected = MEMORY[name]
    assert cgroup.memory_left(tree(tmp_path, files), member(tmp_path, text)) == expected


@pytest.mark.parametrize(
    ("usable", "physical", "quota", "expected"),
    [
        (8, 4, None, 4),
        (2, 16, None, 2),
        (16, 16, 2.9, 2),
        (16, 16, 0.5, 1),
        (3, 16, 64.0, 3),
    ],
)
def test_the_smallest_limit_counts(monkeypatch, usable, physical, quota, expected):
    monkeypatch.setattr(threads, "usable_cores", lambda: usable)
    monkeypatch.setattr(threads, "physical_cores", lambda: physical)
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    assert threads.thread_count(None) == expected
    assert threads.thread_count(7) == 7  # what is asked for is given
    assert threads.thread_count(4 * usable) == 4 * usable


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this platform")
def test_affinity_counts():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert threads.usable_cores() == 1
        assert threads.thread_count(None) == 1
    finally:
        os.sched_setaffinity(0, before)
    assert threads.usable_cores() == len(before)


@pytest.mark.parametrize("asked", [0, -1, 13, 1000])
def test_counts_out_of_range(monkeypatch, asked):
    monkeypatch.setattr(threads, "usable_cores", lambda: 3)
    message = f"threads is {asked}; expected 1 to 12, as this process may use 3 processors"
    with pytest.raises(InvalidArgumentError, match=message):
        threads.thread_count(asked)


# thread_siblings_list of each logical processor, cores.
TOPOLOGIES = {
    "one each": (["0", "1", "2"], 3),
    "two threads a core": (["0,2", "1,3", "0,2", "1,3"], 2),
    "ranges": (["0-1", "0-1"], 1),
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_hardware_threads_of_one_core_count_once(tmp_path, name):
    siblings, cores = TOPOLOGIES[name]
    for i, text in enumerate(siblings):
        folder = tmp_path / f"cpu{i}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{text}\n")
    (tmp_path / "cpufreq").mkdir()
    assert threads.physical_cores(tmp_path) == cores


def test_cores_without_a_topology(tmp_path, monkeypatch):
    import psutil

    (tmp_path / "cpu0").mkdir()
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 64 if logical else None)
    assert threads.physical_cores(tmp_path) == threads.usable_cores()
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: 64 if logical else 5)
    assert threads.physical_cores(tmp_path) == 5
