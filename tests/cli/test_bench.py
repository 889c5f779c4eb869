"""bench: llama-bench's rows, fields and method."""

import csv
import io
import json
import os
import signal
import statistics
import sys
import threading
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from gguf_writer import write_gguf
from scripted import VOCAB, ScriptedRunner

from llama3jit.bench import Test as BenchTest
from llama3jit.bench import measure, model_type, parse_numbers, plan_tests
from llama3jit.cli.app import run
from llama3jit.devices import Limits
from llama3jit.errors import CancelledError

# The fields of llama-bench (llama.cpp 0c1e57098), in its order.
FIELDS = """
    build_commit build_number cpu_info gpu_info backends model_filename model_type model_size
    model_n_params n_batch n_ubatch n_threads cpu_mask cpu_strict poll type_k type_v n_gpu_layers
    n_cpu_moe split_mode main_gpu no_kv_offload flash_attn devices tensor_split
    tensor_buft_overrides load_mode lazy_mode embeddings no_op_offload no_host repack fit_target
    fit_min_ctx n_prompt n_gen n_depth test_time avg_ns stddev_ns avg_ts stddev_ts
""".split()  # noqa: SIM905

BIG = Limits(VOCAB, 4096, 16, 1, 8, 4, 1024)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512", [512]),
        ("1,2,4", [1, 2, 4]),
        ("1-4", [1, 2, 3, 4]),
        ("0-512+128", [0, 128, 256, 384, 512]),
        ("1-65*2", [1, 2, 4, 8, 16, 32, 64]),
        ("7,1-2", [7, 1, 2]),
    ],
)
def test_numbers(text, expected):
    assert list(parse_numbers(text)) == expected


@pytest.mark.parametrize("text", ["", "x", "1-", "1-9+0", "0-9*2", "1-9*1", "1-2-3", "1;2"])
def test_numbers_that_are_none(text):
    with pytest.raises(ValueError):  # noqa: PT011
        list(parse_numbers(text))


def test_plan_and_names():
    names = [test.name for test in plan_tests([512, 0], [128], [0, 256])]
    assert names == ["pp512", "tg128", "pp512 @ d256", "tg128 @ d256"]
    assert BenchTest(0, 128, sampled=True).name == "tg128 sampled"


def shapes(test, repetitions=2):
    """(tokens, first position, rows of logits) of every pass that a measurement runs."""
    runner = ScriptedRunner(lambda history: np.zeros(VOCAB, np.float32), BIG)
    samples = measure(runner, test, repetitions, first_id=256)
    assert len(samples) == repetitions
    assert all(ns > 0 for ns in samples)
    return runner, [
        (len(b.tokens), int(b.positions[0]), len(b.logits_rows)) for b in runner.batches
    ]


def test_prompts_run_in_batches_after_a_warm_up():
    runner, passes = shapes(BenchTest(40, 0))
    assert passes == [(16, 0, 1), (16, 16, 1), (8, 32, 1)] * 3
    assert runner.batches[0].tokens[0] == 256


def test_generation_runs_a_token_at_a_time_with_logits():
    _, passes = shapes(BenchTest(0, 3))
    assert passes == [(1, 0, 1), (1, 1, 1), (1, 2, 1)] * 3


def test_depth_is_filled_once_and_stays():
    _, passes = shapes(BenchTest(0, 2, 20))
    assert passes == [(16, 0, 1), (4, 16, 1)] + [(1, 20, 1), (1, 21, 1)] * 3


def test_sampled_generation_goes_through_the_engine():
    runner, passes = shapes(BenchTest(0, 4, sampled=True))
    assert passes == [(1, i, 1) for i in range(4)] * 3
    assert runner.closed == 0


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"general.architecture": "llama", "general.file_type": 15}, "llama 135M Q4_K - Medium"),
        ({"general.architecture": "llama"}, "llama 135M Q4_1"),
        ({}, "? 135M Q4_1"),
        ({"general.file_type": np.array([1, 2])}, "? 135M Q4_1"),
    ],
)
def test_model_type(metadata, expected):
    sizes = [("Q8_0", 30, 28_000_000), ("Q4_1", 90, 106_500_000), ("F32", 1, 35_000)]
    assert model_type(metadata, sizes) == expected


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A GGUF file, opened on a scripted runner; gives its path and what open_runner was given."""
    opened = []

    def open_runner(gguf, config, **options):
        limits = Limits(VOCAB, options["n_ctx"], 16, 1, 8, 4, -(-options["n_ctx"] // 4))
        runner = ScriptedRunner(lambda history: np.zeros(VOCAB, np.float32), limits)
        opened.append((runner, options))
        return runner

    choose = ModuleType("llama3jit.devices.choose")
    choose.open_runner = open_runner
    monkeypatch.setitem(sys.modules, "llama3jit.devices.choose", choose)
    monkeypatch.setattr("llama3jit.model.config.read_config", lambda gguf: None)
    path = write_gguf(
        tmp_path / "tiny.gguf",
        {"general.architecture": "llama", "general.file_type": 0},
        {"token_embd.weight": np.zeros((1000, 1100), np.float32)},
    )
    yield SimpleNamespace(path=str(path), opened=opened)
    assert all(runner.closed == 1 for runner, _ in opened)


@pytest.mark.parametrize("numbers", ["1-0", "0-99999999999", "1-2000", "-1", ""])
@pytest.mark.parametrize("option", ["-p", "-n", "-d", "-t"])
def test_too_many_numbers_or_none(model, capsys, option, numbers):
    assert run(["bench", model.path, option, numbers]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"is {numbers!r}: expected" in err
    assert err.count("\n") == 1


def test_ctrl_c_ends_a_forward_pass(model):
    cancelled = threading.Event()

    def forward(self, batch):
        os.kill(os.getpid(), signal.SIGINT)
        if not cancelled.wait(10):
            raise AssertionError("the pass was not cancelled")
        raise CancelledError("the forward pass was cancelled")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptedRunner, "forward", forward)
        patch.setattr(ScriptedRunner, "cancel", lambda self: cancelled.set())
        assert run(["bench", model.path, "-p", "8", "-n", "0"]) == 130
    assert cancelled.is_set()


def test_markdown_has_the_columns_of_llama_bench(model, capsys):
    assert run(["bench", model.path, "-p", "8", "-n", "4", "-r", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "| model                          |       size |     params | backend    | threads |"
        "            test |                  t/s |"
    )
    assert lines[1] == (
        "| ------------------------------ | ---------: | ---------: | ---------- | ------: |"
        " --------------: | -------------------: |"
    )
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:5]]
    assert [row[:5] for row in cells] == [
        ["llama 1M all F32", "4.20 MiB", "1.10 M", "CPU", "2"]
    ] * 3
    assert [row[5] for row in cells] == ["pp8", "tg4", "tg4 sampled"]
    assert all(float(row[6].split(" ± ")[0]) > 0 for row in cells)
    assert lines[-1].startswith("build: ")
    _, options = model.opened[0]
    assert options["n_ctx"] == 8
    assert options["max_sequences"] == 1


@pytest.mark.parametrize("kind", ["json", "jsonl", "csv"])
def test_machine_formats_have_the_fields_of_llama_bench(model, capsys, kind):
    assert run(["bench", model.path, "-p", "8", "-n", "4", "-r", "3", "-t", "1,2", "-o", kind]) == 0
    out = capsys.readouterr().out
    if kind == "csv":
        rows = list(csv.DictReader(io.StringIO(out)))
        assert list(rows[0]) == FIELDS
    else:
        rows = json.loads(out) if kind == "json" else list(map(json.loads, out.splitlines()))
        assert list(rows[0])[: len(FIELDS)] == FIELDS
        for row in rows:
            assert len(row["samples_ns"]) == len(row["samples_ts"]) == 3
            assert row["avg_ts"] == pytest.approx(statistics.fmean(row["samples_ts"]))
            assert row["stddev_ts"] == pytest.approx(statistics.stdev(row["samples_ts"]))
            tokens = row["n_prompt"] + row["n_gen"]
            assert row["samples_ts"][0] == pytest.approx(tokens * 1e9 / row["samples_ns"][0])
    got = [tuple(int(row[key]) for key in ("n_threads", "n_prompt", "n_gen")) for row in rows]
    assert got == [(1, 8, 0), (1, 0, 4), (2, 8, 0), (2, 0, 4)]


def test_several_devices(model, capsys):
    arguments = ["-p", "8", "-n", "0", "-r", "1", "--device", "cpu,cuda", "-o", "jsonl"]
    assert run(["bench", model.path, *arguments]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert [options["device"] for _, options in model.opened] == ["cpu", "cuda"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "0", "-n", "0"], "nothing to measure"),
        (["-p", "x"], "--n-prompt is 'x'"),
        (["-o", "xml"], "--output is 'xml': expected one of md, json, jsonl, csv"),
        (["-r", "0"], "repetitions"),
    ],
)
def test_wrong_usage(model, capsys, arguments, message):
    assert run(["bench", model.path, *arguments]) == 2
    assert message in capsys.readouterr().err
