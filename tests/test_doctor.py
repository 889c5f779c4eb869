"""What doctor says, on machines that are not as they should be."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import pytest
from gguf_writer import write_gguf

from llama3jit import doctor, installed
from llama3jit.cli.app import run
from llama3jit.compile import targets
from llama3jit.devices import cgroup
from llama3jit.devices.cpu import threads

DECLARED = [
    "numpy<3,>=1.26",
    "no-such-package>=1",
    'cuda-things>=1; extra == "cuda"',
    "llvmlite ; extra == 'cuda'",
    'numpy[all]>=1; (python_version >= "3.11") and extra == "more"',
    'pytest; extra == "test"',
    'llama3jit[cuda]; extra == "more"',
]


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """A store of its own, and kernels that need no trial."""
    monkeypatch.setenv("LLAMA3JIT_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LLAMA3JIT_KERNELS", "cache,jit")


def store_model(tmp_path: Path, name: str, metadata: dict[str, object]) -> None:
    (tmp_path / "models").mkdir(exist_ok=True)
    write_gguf(tmp_path / "models" / f"{name}.gguf", metadata)


def test_the_table_and_the_json_say_the_same(capsys, tmp_path):
    assert run(["doctor"]) == 0
    text = capsys.readouterr().out
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    words = " ".join(text.split())
    assert found["used"] in words
    for subject in ("package", "processor", "threads", "kernels", "memory", "folders", "devices"):
        assert found[subject], subject
        assert f"\n{subject}\n" in text
    assert found["processor"]["level"] == targets.host_target().name
    assert set(targets.host_target().features) <= set(found["processor"]["features"])
    assert found["threads"]["used"] == threads.thread_count(None)
    assert found["settings"]["LLAMA3JIT_MODELS"] == str(tmp_path / "models")
    assert found["problems"] == []
    assert found["notes"] == ["no model is here: llama3jit pull smollm2-135m-instruct"]
    assert max(map(len, text.splitlines())) <= 100
    assert not (tmp_path / "cache").exists(), "looking makes nothing"
    assert not (tmp_path / "models").exists()


def test_kernels_that_may_not_be_compiled_stop_a_load(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("LLAMA3JIT_KERNELS", "cache")
    assert run(["doctor"]) == 1
    words = " ".join(capsys.readouterr().out.split())
    assert "kernels are not there, and LLAMA3JIT_KERNELS forbids to compile them; unset it" in words
    monkeypatch.setenv("LLAMA3JIT_KERNELS", "nonsense")
    assert run(["doctor", "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert "expected shipped, cache, jit" in problem


def test_a_model_that_does_not_load_is_named(capsys, tmp_path):
    store_model(tmp_path, "strange", {"general.architecture": "rwkv"})
    (tmp_path / "models" / "broken.gguf").write_bytes(b"GGUF")
    assert run(["doctor", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert list(found["models"]) == ["broken", "strange"]
    assert [problem.split(":")[0] for problem in found["problems"]] == ["broken", "strange"]
    assert "rwkv" in found["problems"][1]
    assert found["folders"]["models"]["files"] == 2


def test_packages_and_extras(monkeypatch, capsys):
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: DECLARED)
    assert installed.packages()["no-such-package"] == "none"
    extras = installed.extras()
    assert list(extras) == ["cuda", "more"]
    assert extras["cuda"] == "lacks cuda-things: pip install 'llama3jit[cuda]'"
    assert extras["more"].startswith("numpy ")
    assert run(["doctor"]) == 1
    assert "pip install no-such-package" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cores", "mask", "quota", "used", "why"),
    [
        (4, 8, None, 4, "physical cores"),
        (8, 3, None, 3, "affinity mask"),
        (8, 8, 2.5, 2, "control group's quota"),
        (8, 8, 0.3, 1, "control group's quota"),
    ],
)
def test_threads_and_why(monkeypatch, cores, mask, quota, used, why):
    for module in (threads, cgroup):
        monkeypatch.setattr(module, "cpu_quota", lambda *_: quota)
    monkeypatch.setattr(threads, "usable_cores", lambda: mask)
    monkeypatch.setattr(threads, "physical_cores", lambda *_: cores)
    shown = doctor._threads()
    assert (shown["used"], shown["why"]) == (used, f"the least of these: {why}")
    assert shown["control group's quota"] == (quota or "no limit")


def test_a_level_and_why(monkeypatch):
    best, amx = targets.LEVELS[1], frozenset(targets.LEVELS[0].features)
    monkeypatch.setattr(targets, "host_target", lambda: best)
    monkeypatch.setattr(targets, "host_features", lambda: amx)
    monkeypatch.setattr(targets, "usable_features", lambda: frozenset(best.features))
    shown = doctor._processor()
    assert shown["why"] == "x86-64-v4-amx lacks amx-tile, amx-int8"
    assert shown["unused"].startswith("amx-int8, amx-tile: shown by the processor, but a trial")


def test_folders_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LLAMA3JIT_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    found = doctor.examine()
    assert found["folders"]["models"]["writable"] == "no permission"
    assert found["folders"]["kernels"]["writable"] == f"{tmp_path / 'file'} is a file"
    assert "set LLAMA3JIT_MODELS" in found["notes"][0]
    assert "set LLAMA3JIT_CACHE" in found["notes"][1]
    assert found["problems"] == []
