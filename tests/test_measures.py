"""What the tools of bench/ compute, whatever the machine."""

import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_model import tiny_model

from llama3jit.compile.library import Library
from llama3jit.compile.units import WALKER
from llama3jit.devices.choose import open_runner
from llama3jit.devices.cpu.pool import get_pool
from llama3jit.files.formats import FORMATS
from llama3jit.files.gguf import open_gguf
from llama3jit.model.batch import Piece, make_batch
from llama3jit.model.config import read_config

sys.path.append(str(Path(__file__).parents[1] / "bench"))

import machine
import memory
import report
import requantise
import roofline
import rows
import side_llama3jit
import synthetic
from perplexity import Line

gguf = pytest.importorskip("gguf")


@pytest.fixture
def runner(tmp_path):
    tiny = tiny_model(tmp_path / "m.gguf", formats={"*": "Q4_0"})
    with open_gguf(tiny.path) as file:
        found = open_runner(file, read_config(file), device="cpu", n_ctx=700, threads=2)
        yield found
        found.close()


@pytest.mark.parametrize("kind", synthetic.TYPES)
def test_synthetic_weights_are_of_ordinary_size(kind):
    weight = synthetic.matrix(kind, 64, 512)
    assert weight.shape == (64, FORMATS[kind.upper()].row_bytes(512))
    values = gguf.dequantize(weight, gguf.GGMLQuantizationType[kind.upper()])
    assert values.shape == (64, 512)
    assert 0.01 < values.std() < 0.04
    assert abs(values.mean()) < 0.005


def test_spans_that_touch_are_one():
    assert machine.merged([(128, 64), (0, 64), (64, 32), (300, 4)]) == [
        (0, 96), (128, 64), (300, 4),
    ]  # fmt: skip


@pytest.mark.parametrize("variant", machine.SWEEPS)
def test_a_sweep_reads_everything(variant):
    memory = np.random.default_rng(0).integers(0, 256, 5 * 2**15 + 2**10 + 64, np.uint8)
    skip = -memory.ctypes.data % 64
    data = memory[skip : skip + 5 * 2**15 + 2**10]
    swept = machine.Machine(get_pool(2, Library([WALKER])), [data[: 2**10], data[2**10 :]])
    assert swept.swept == data.nbytes
    assert swept.sweep(variant) > 0
    sums = swept._kept[2 + machine.SWEEPS.index(variant)]
    expected = [
        data[at : at + 2**15].reshape(-1, 64).sum(axis=0, dtype=np.uint8)
        for at in range(0, len(data), 2**15)
    ]
    assert np.array_equal(sums, expected)
    assert swept.peak("int8_peak") > swept.peak("f32_peak") * 0.1 > 0


@pytest.mark.parametrize("depth", [0, 600])
def test_every_row_of_a_pass_is_timed(runner, depth):
    *deep, batch = roofline.batches(3, depth, 300)
    assert sum(len(b.tokens) for b in deep) == depth
    for b in deep:
        runner.forward(b)
    expected = runner.forward(batch).copy()
    weights = [runner._arrays[name] for name in runner.lowered.packed]
    swept = machine.Machine(runner.pool, weights)
    measured = rows.Pass(runner, batch, swept)
    split = any(row.op == "attention_chunks" for row in measured.lowered.rows)
    assert split == (depth == 600)
    cycles = measured.row_cycles()
    assert len(cycles) == 1 + len(measured.lowered.rows)
    assert (cycles > 0).all()
    assert np.array_equal(runner._arrays["logits"][:1], expected)
    seconds, _ = measured.seconds()
    assert 0 < seconds < 10


def test_the_work_of_rows(runner):
    batch = make_batch([Piece([1] * 5, 7, [0])])
    lowered = runner.lowered
    work = {}
    for row in lowered.rows:
        work.setdefault(row.operands.get("weight", row.op), rows.work_of(row, lowered, batch))
    down = work["blk.0.ffn_down.weight:packed"]
    assert (down.op, down.shape, down.int8) == ("matmul_int8 q4_0", "64 x 96", True)
    assert down.operations == 2 * 5 * 64 * 96
    activations = 5 * (128 + 2 * 4 * 96 // 32 + 4 * 96 // 16)  # in whole lines of 64 bytes
    assert down.nbytes == 64 * 96 // 32 * 18 + activations + 4 * 5 * 64
    assert work["output.weight:packed"].operations == 2 * 300 * 64  # one row of logits
    assert work["attention"].operations == 4 * 4 * 16 * (8 + 9 + 10 + 11 + 12)
    assert work["attention"].nbytes >= 2 * 12 * 2 * 2 * 16 + 2 * 4 * 5 * 64
    assert work["select_rows"].nbytes == 2 * 4 * 64 + 4


def test_sequences_that_decode_at_once_are_those_alone(tmp_path):
    tiny = tiny_model(tmp_path / "m.gguf")
    with open_gguf(tiny.path) as file:
        found = open_runner(
            file, read_config(file), device="cpu", n_ctx=3 * 70, threads=2, max_sequences=3
        )
        together = side_llama3jit.Together(found, 70, 3, 1)
        assert together.sample(4, 66) > 0
        assert [tokens[0] for tokens in together.tokens] == [1, 1, 1]
        last = found._arrays["logits"][:3].copy()
        for s in range(3):
            alone = found.forward(make_batch([together.piece(s, 0, 70)]))
            assert np.allclose(alone[0], last[s], atol=1e-4)
        found.close()


def test_requantised_files_hold_the_nearest_values(tmp_path):
    tiny = tiny_model(tmp_path / "m.gguf", formats={"*": "Q5_0"})
    files = requantise.requantised(tiny.path, tmp_path, ["q4_1", "bf16", "f16", "tq2_0"])
    assert set(files) == {"q4_1", "bf16", "f16"}  # rows of 64 hold no block of 256
    for kind, path in files.items():
        found = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
        assert set(found) == set(tiny.values)
        for name, values in tiny.values.items():
            tensor = found[name]
            dtype = "F32" if values.ndim == 1 else kind.upper()
            assert tensor.tensor_type.name == dtype
            raw = gguf.quantize(values.astype(np.float32), tensor.tensor_type)
            assert tensor.data.tobytes() == raw.tobytes(), name
        with open_gguf(path) as file:
            read_config(file)


def test_perplexities_within_the_bar():
    theirs = np.array([3.0, 3.2, 3.4, 3.6])

    def cells(fast, exact):
        return Line("Q4_0", 10**6, {"fast": theirs + fast, "exact": theirs + exact}, theirs).cells()

    assert cells(0.004, 0.0)[-3:] == ["+0.40% ± 0.00%", "+0.00% ± 0.00%", "yes, yes"]
    assert cells(0.004, -0.006)[-3:] == ["+0.40% ± 0.00%", "-0.60% ± 0.00%", "yes, no"]
    assert cells(0.006, 0.0)[-1] == "no, yes"
    noisy = np.array([0.01, -0.01, 0.01, -0.01])
    assert cells(noisy, 0.0)[-3] == f"+0.00% ± {(4e-4 / 3) ** 0.5 / 2:.2%}"


def test_peak_memory_is_the_processs_own():
    ballast = np.ones(2**25)  # 256 MiB of this process, which are not the child's
    assert 5e6 < memory.peak_of(["--version"]) < 0.3 * ballast.nbytes
    assert memory.Line("m", 100_000_000, 50_000_000, 300_000_001).cells()[-1] == "no"
    assert memory.Line("m", 100_000_000, 50_000_000, 300_000_000).cells()[-1] == "yes"


def test_tables_are_printed_and_kept(tmp_path, capsys):
    text = report.table(["a", "b"], [["x", "1"]])
    assert text == "| a | b |\n| --- | ---: |\n| x | 1 |"
    report.publish("T", text, {"k": "v"}, tmp_path / "out.md")
    assert capsys.readouterr().out == f"{text}\n\nk: v\n"
    assert (tmp_path / "out.md").read_text() == f"\n## T\n\nk: v\n\n{text}\n"
    assert {"machine", "commit", "date"} <= set(report.about())
