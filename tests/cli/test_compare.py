"""The comparison of devices: its figures, from logits that are known, and the command."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_model import tiny_model

sys.path.append(str(Path(__file__).parents[1]))  # for its helpers
from test_load import byte_vocabulary

from llama3jit.cli.app import run
from llama3jit.cli.compare import table
from llama3jit.compare import Comparison, Difference, Side, _difference, compare
from llama3jit.errors import DeviceError, InvalidArgumentError


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return tiny_model(folder / "tiny.gguf", n_layer=1, **byte_vocabulary()).path


def side(device, tokens, **figures):
    known = {"load_s": 0.5, "first_token_s": 0.25, "prefill_tokens_per_s": 100.0}
    known |= {"decode_tokens_per_s": 50.0, "memory_mib": 12.0, "text": "", **figures}
    return Side(device=device, tokens=tokens, **known)


def test_differences_of_known_logits():
    truth = np.log(np.array([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]], np.float32))
    found = np.log(np.array([[0.25, 0.5, 0.25], [0.8, 0.1, 0.1]], np.float32)) + np.float32(2)
    difference = _difference(side("cpu", [1, 2, 3, 4]), side("x", [1, 2, 4, 4]), truth, found)
    expected = 0.25 * np.log(2)  # 0.5 ln (0.5 / 0.25) + 0.25 ln (0.25 / 0.5)
    assert difference.device == "x"
    assert difference.parted_at == 2
    assert difference.max_kl == pytest.approx(expected, rel=1e-5)
    assert difference.mean_kl == pytest.approx(expected / 2, rel=1e-5)
    assert difference.max_difference == pytest.approx(2 + np.log(2), rel=1e-5)
    assert difference.mean_difference == pytest.approx(2, rel=1e-5)


def test_a_text_that_is_the_same_never_parts():
    row = np.zeros((1, 3), np.float32)
    assert _difference(side("a", [1, 2]), side("b", [1, 2]), row, row) == Difference(
        "b", None, 0.0, 0.0, 0.0, 0.0
    )


def test_two_devices(path):
    found = compare(path, ["cpu", "reference"], "some text", max_tokens=12, n_ctx=64)
    assert [side.device for side in found.sides] == ["cpu", "reference"]
    assert found.prompt_tokens == 10
    for one in found.sides:
        assert len(one.tokens) == 12
        assert min(one.load_s, one.first_token_s, one.decode_tokens_per_s, one.memory_mib) > 0
    (difference,) = found.differences
    assert 0 < difference.mean_kl <= difference.max_kl < 1e-2
    assert 0 < difference.mean_difference < difference.max_difference


def test_the_command(path, capsys):
    arguments = ["compare", str(path), "--device", "cpu, reference", "-p", "ab", "-n", "3"]
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["prompt_tokens"] == 3
    assert found["differences"][0]["device"] == "reference"
    assert len(found["sides"][1]["tokens"]) == 3
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["cpu", "reference"]
    assert [line.split("  ")[0] for line in lines[1:]][:3] == [
        "load, s",
        "first token, s",
        "prefill, tok/s",
    ]


def test_the_table():
    sides = [side("cpu", [1, 2]), side("cuda", [1, 3], decode_tokens_per_s=None)]
    text = table(Comparison("m", 5, sides, [Difference("cuda", 1, 1e-4, 2e-4, 0.5, 0.75)]))
    rows = [line.split() for line in text.splitlines()]
    assert rows[0] == ["cpu", "cuda"]
    assert rows[4] == ["decode,", "tok/s", "50.0", "-"]
    assert rows[6][-2:] == ["-", "1"]
    assert rows[7][-2:] == ["-", "1.00e-04"]
    assert rows[10][-2:] == ["-", "7.50e-01"]


@pytest.mark.parametrize("devices", ["cpu", "", "cpu,cpu", "cpu,,"])
def test_fewer_than_two_devices(path, capsys, devices):
    assert run(["compare", str(path), "--device", devices]) == 2
    assert "expected two devices or more" in capsys.readouterr().err


def test_a_device_that_is_not_there_fails_before_anything_runs(path, monkeypatch):
    from llama3jit.devices.cuda import probe

    monkeypatch.setattr(probe, "package_installed", lambda: False)
    monkeypatch.setattr("llama3jit.compare._open", None)
    with pytest.raises(DeviceError, match="needs the packages"):
        compare(path, ["cpu", "cuda"], "x")
    with pytest.raises(InvalidArgumentError, match="device is 'gpu'"):
        compare(path, ["cpu", "gpu"], "x")
