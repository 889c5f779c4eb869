"""Profiles of passes: what the rows are said to do, and the forms that they come in."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest
from tiny_model import tiny_model

from llama3jit import profile as profiling
from llama3jit.cli import app
from llama3jit.devices.work import TimedRow, grouped
from llama3jit.errors import InvalidArgumentError
from llama3jit.files.gguf import open_gguf

SIZES = {"n_embd": 256, "n_ff": 512, "n_head": 4, "n_head_kv": 2, "head_dim": 64, "vocab": 304}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "tiny.gguf"
    return tiny_model(path, formats={"*": "Q8_0"}, n_layer=2, **SIZES)


@pytest.fixture(scope="module")
def found(tiny):
    return profiling.profile(tiny.path, n_tokens=3, depth=5, device="cpu", threads=1, repeats=2)


def test_the_rows_of_a_pass(tiny, found):
    assert (found.device, found.n_tokens, found.depth) == ("cpu", 3, 5)
    assert found.seconds > 0
    assert found.read_rate > 1e8
    assert all(row.seconds > 0 for row in found.rows)
    products = [row for row in found.rows if row.name.startswith("matmul")]
    with open_gguf(tiny.path) as gguf:
        matrices = {n: t for n, t in gguf.tensors.items() if len(t.shape) == 2}
        read = [t for name, t in matrices.items() if name != "token_embd.weight"]
    assert len(products) == len(read)
    # The last layer's products behind attention, and the logits, are of the last token alone.
    each = [3] * 10 + [1] * 5
    expected = sum(2 * n * k for n, k in (t.shape for t in read))
    assert expected < sum(row.operations for row in products) < 3 * expected
    assert len(each) == len(read)
    nbytes = sum(t.nbytes for t in read)
    assert nbytes < sum(row.nbytes for row in products) < 2 * nbytes
    attention = [row for row in found.rows if row.name.startswith("attention")]
    assert [row.operations for row in attention] == [4 * 4 * 64 * (6 + 7 + 8)] * 2
    assert all(row.nbytes >= 2 * 2 * 64 * 2 * 8 for row in attention)


def test_rows_of_a_kind_are_counted_together():
    rows = [TimedRow("a", "1", 2.0, 3, 4), TimedRow("b", "1", 5.0, 1, 0)] * 2
    rows.append(TimedRow("a", "2", 1.0, 1, 1))
    groups = [(group.name, group.sizes, group.seconds, n) for group, n in grouped(rows)]
    assert groups == [("b", "1", 10.0, 2), ("a", "1", 4.0, 2), ("a", "2", 1.0, 1)]


def test_the_table_has_every_kind_and_all_rows(found):
    lines = profiling.table(found).splitlines()
    kinds = {(row.name, row.sizes) for row in found.rows}
    assert len(lines) == 2 + len(kinds) + 1 + 2
    assert lines[-3].startswith(f"| all |  | {len(found.rows)} |")
    assert "3 tokens after 5 on cpu" in lines[-1]


def test_the_trace_has_the_rows_in_order(found):
    events = [e for e in json.loads(profiling.trace(found))["traceEvents"] if e["ph"] == "X"]
    assert [event["name"] for event in events] == [row.name for row in found.rows]
    ends = [event["ts"] + event["dur"] for event in events]
    assert np.allclose(ends[:-1], [event["ts"] for event in events[1:]], atol=0.01)


def test_the_plot_is_a_picture_with_a_dot_for_each_kind(found):
    root = ElementTree.fromstring(profiling.plot(found))
    dots = [element for element in root if element.tag.endswith("circle")]
    assert len(dots) == len({(row.name, row.sizes) for row in found.rows if row.operations})
    for dot in dots:
        assert 0 < float(dot.get("cx")) < profiling.WIDTH
        assert 0 < float(dot.get("cy")) < profiling.HEIGHT


def test_the_command(tiny, tmp_path, capsys):
    plot, trace = tmp_path / "p.svg", tmp_path / "t.json"
    command = ["profile", str(tiny.path), "--device", "cpu", "-r", "1", "--plot", str(plot)]
    assert app.run([*command, "--trace", str(trace), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert len(json.loads(trace.read_text())["traceEvents"]) == 2 + len(rows)
    ElementTree.fromstring(plot.read_text())
    assert app.run([*command[:2], "--device", "reference"]) == 2


def test_a_device_without_a_clock(tiny):
    with pytest.raises(InvalidArgumentError, match="have no clock"):
        profiling.profile(tiny.path, device="reference")
