"""captured_pass on batches of several sequences."""

import dataclasses

import numpy as np
import pytest
from driving import ids_of, opened
from tiny_model import tiny_model

from llama3jit.devices.capture import Capture, captured_pass, names_of
from llama3jit.engine.engine import Engine
from llama3jit.engine.sequence import Request, SamplingParams
from llama3jit.errors import UnsupportedError
from llama3jit.model.batch import Piece, make_batch


@pytest.fixture(scope="module", params=["reference", "cpu"])
def runner(request, tmp_path_factory):
    tiny = tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")
    found = opened(tiny, request.param, kv_dtype="f32", precision="exact")
    yield found
    found.close()


class Seen(dict):
    """Pieces by name and position; none comes twice."""

    def capture(self, *names):
        return Capture(names, self.take)

    def take(self, name, first, values):
        assert (name, first) not in self
        self[name, first] = values.copy()


def test_sequences_are_told_apart(runner):
    a, b, c = ids_of(9, 1), ids_of(12, 2), ids_of(5, 3)
    names = ("blk.0.resid", "blk.1.attn_probs", "blk.1.resid", "logits")
    alone = {}
    for ids, table in ((a, [0]), (b, [1]), (c, [2])):
        seen = alone[tuple(ids)] = Seen()
        captured_pass(runner, make_batch([Piece(ids, 0, table, "all")]), {0: seen.capture(*names)})
    first, last = Seen(), Seen()
    batch = make_batch([Piece(ids, 0, [i], "all") for i, ids in enumerate((a, b, c))])
    logits = captured_pass(runner, batch, {0: first.capture(*names), 2: last.capture(*names)})
    np.testing.assert_array_equal(logits, runner.forward(batch))
    for ids, seen in ((a, first), (c, last)):
        assert seen.keys() == alone[tuple(ids)].keys()
        for key, values in seen.items():
            np.testing.assert_array_equal(values, alone[tuple(ids)][key])


def test_tokens_without_logits_are_computed_and_not_shown(runner):
    ids = ids_of(20, 4)
    names = ("blk.0.ffn_norm", "blk.0.attn_probs", "result_norm")
    whole, rest = Seen(), Seen()
    captured_pass(runner, make_batch([Piece(ids, 0, [3], "all")]), {0: whole.capture(*names)})
    capture = {0: rest.capture(*names)}
    captured_pass(runner, make_batch([Piece(ids[:8], 0, [4], "none")]), capture)
    assert rest == {}
    captured_pass(runner, make_batch([Piece(ids[8:], 8, [4], "all")]), capture)
    assert {first for _, first in rest} == {8}
    for name in names:
        expected = whole[name, 0]
        expected = expected[:, 8:] if name.endswith("probs") else expected[8:]
        np.testing.assert_array_equal(rest[name, 8], expected)


def test_the_head_is_left_out_where_nobody_wants_it(runner):
    seen = Seen()
    batch = make_batch([Piece(ids_of(5), 0, [5], "all")])
    logits = captured_pass(runner, batch, {0: seen.capture("result_norm")})
    assert logits.shape == (5, 0)
    assert len(seen) == 1
    captured_pass(runner, batch, {0: seen.capture("embd")})
    # The cache is whole: what goes on from it is as ever.
    following = make_batch([Piece([7], 5, [5])])
    found = runner.forward(following).copy()
    runner.forward(batch)
    np.testing.assert_array_equal(found, runner.forward(following))


def test_names_and_devices(runner):
    names = names_of(runner)
    assert names[0] == "embd"
    assert names[-2:] == ["result_norm", "logits"]
    assert len(names) == len(set(names))
    with pytest.raises(UnsupportedError, match="device='cpu'"):
        names_of(object())


def test_a_preempted_sequence_is_shown_once(tmp_path):
    """Four blocks for two sequences that need five: the newer one begins again in the middle."""
    tiny = tiny_model(tmp_path / "tiny.gguf")
    ids = ids_of(120, 6)
    alone, shown, preempted = Seen(), Seen(), []
    for n_blocks, seen in ((8, alone), (4, shown)):
        runner = opened(tiny, "reference", kv_dtype="f32")
        runner.limits = dataclasses.replace(runner.limits, n_blocks=n_blocks, max_logits_rows=2)
        engine = Engine(runner)
        scheduler = engine._core.scheduler
        preempt = scheduler._preempt
        preempted.append(0)

        def counted(sequence, preempt=preempt):
            preempted[-1] += 1
            preempt(sequence)

        scheduler._preempt = counted
        params = SamplingParams(max_tokens=90, temperature=0)
        older = iter(engine.submit(Request(ids_of(60, 7), params)))
        next(older)
        wanted = seen.capture("blk.1.attn_probs", "result_norm")
        handle = engine.submit(Request(ids, visit=lambda first, rows: None, capture=wanted))
        assert len(list(older)) == 89
        assert list(handle) == []
        engine.close()
    for name in ("blk.1.attn_probs", "result_norm"):
        for seen in (alone, shown):
            assert sum(seen[key].shape[-2] for key in seen if key[0] == name) == 120
    norms = [
        np.concatenate([seen[key] for key in sorted(seen) if key[0] == "result_norm"])
        for seen in (alone, shown)
    ]
    np.testing.assert_array_equal(*norms)
    assert preempted == [0, 1]
