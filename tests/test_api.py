"""The Python face on a scripted model: text in, text out, errors by name."""

import dataclasses
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from scripted import ASSISTANT, BOS, END, LIMITS, VOCAB, noise, peak, replying, scripted_llama

import llama3jit
from llama3jit.errors import (
    CancelledError,
    ContextOverflowError,
    InvalidArgumentError,
    NumericsError,
)

USER_TURN = [{"role": "user", "content": "hi"}]


@pytest.fixture
def make():
    opened = []

    def build(script, before=None, **changes):
        both = scripted_llama(script, dataclasses.replace(LIMITS, **changes), before)
        opened.append(both)
        return both.llama

    yield build
    for both in opened:
        both.llama.close()
        assert both.runner.closed == 1
        both.llama._engine._core.scheduler.pool.check([])


def test_chat_gives_the_reply_and_its_figures(make):
    result = make(replying("Hello!")).chat(USER_TURN)
    assert str(result) == result.text == "Hello!"
    assert result.tokens == list(b"Hello!")
    assert result.finish_reason == "stop"
    assert (result.prompt_tokens, result.completion_tokens) == (5, 6)
    stats = result.stats
    assert 0 <= stats.queue_s <= stats.ttft_s <= stats.total_s < 10
    assert stats.prefill_tokens_per_s > 0
    assert stats.decode_tokens_per_s > 0
    assert result.logprobs is None


def test_how_much_of_a_prompt_was_cached(make):
    llm = make(noise)
    cached = [llm.generate([BOS, 97, 98, 99, 100], max_tokens=2).stats for _ in range(2)]
    assert [stats.cached_tokens for stats in cached] == [0, 4]
    found = llm.counters
    assert (found.prefix_tokens, found.finished, found.running) == (4, 2, 0)


def test_generate_takes_text_and_ids(make):
    llm = make(noise)
    by_text = llm.generate("abc", max_tokens=12, seed=3)
    by_ids = llm.generate(np.array([BOS, 97, 98, 99]), max_tokens=12, seed=3)
    assert by_text.tokens == by_ids.tokens
    assert by_text.finish_reason == "length"
    assert by_text.prompt_tokens == 4


def test_a_reply_with_no_tokens(make):
    result = make(lambda history: peak(END)).generate("x")
    assert (result.text, result.tokens, result.finish_reason) == ("", [], "stop")
    assert result.stats.ttft_s is None


@pytest.mark.parametrize("text", ["a héllo 🏋️‍♀️ 你好", "x" * 40, "ab"])
@pytest.mark.parametrize("stop", [(), ("lo ",), ("好", "zzz"), "b", ("xx" * 3 + "y",)])
def test_parts_join_to_the_text_cut_before_the_stop_string(make, text, stop):
    llm = make(replying(text))
    parts = list(llm.stream_chat(USER_TURN, stop=stop, temperature=0))
    result = parts[-1].result
    ends = [text.find(s) for s in ((stop,) if isinstance(stop, str) else stop) if s in text]
    assert "".join(part.text for part in parts) == result.text == text[: min(ends, default=None)]
    assert [part.token for part in parts[:-1]] == result.tokens
    assert parts[-1].token is None
    assert result.finish_reason == "stop"
    assert llm.chat(USER_TURN, stop=stop, temperature=0).text == result.text


def test_incomplete_utf8_is_flushed_at_the_end(make):
    def script(history):
        return peak([0xE4, 0xBD, END][history[::-1].index(ASSISTANT)])

    assert make(script).chat(USER_TURN).text == "�"


def test_what_may_become_a_stop_string_is_not_lost(make):
    llm = make(replying("DEFGHI"))
    parts = list(llm.stream_chat(USER_TURN, stop=["DEFGHIJ"]))
    assert [part.text for part in parts] == [""] * 6 + ["DEFGHI"]


def test_max_tokens_ends_with_length_even_among_held_back_text(make):
    result = make(replying("abcdef")).chat(USER_TURN, max_tokens=3, stop=["cdx"])
    assert (result.text, result.finish_reason) == ("abc", "length")


@pytest.mark.parametrize("how", ["generate", "stream", "chat", "stream_chat"])
def test_unknown_and_impossible_arguments_are_refused_at_once(make, how):
    call = getattr(make(noise), how)
    prompt = USER_TURN if "chat" in how else "x"
    with pytest.raises(InvalidArgumentError, match="'max_token'; did you mean 'max_tokens'"):
        call(prompt, max_token=3)
    with pytest.raises(InvalidArgumentError, match=r"^top_p is 1.5: expected 0 to 1"):
        call(prompt, top_p=1.5)
    with pytest.raises(InvalidArgumentError, match="stop has ''"):
        call(prompt, stop=["a", ""])
    with pytest.raises(InvalidArgumentError, match="stop has 3"):
        call(prompt, stop=[3])
    with pytest.raises(InvalidArgumentError, match="stop has ''"):
        call(prompt, stop="")
    with pytest.raises(InvalidArgumentError, match="stop is 5: expected a string"):
        call(prompt, stop=5)
    with pytest.raises(InvalidArgumentError, match=r"^temperature is 1000.*: expected a finite"):
        call(prompt, temperature=10**400)


def test_bad_prompts_are_refused_at_once(make):
    llm = make(noise, n_ctx=32)
    with pytest.raises(ContextOverflowError, match=r"33 tokens.*holds 32"):
        llm.stream("x" * 32)
    with pytest.raises(InvalidArgumentError, match="no tokens"):
        llm.stream([])
    with pytest.raises(InvalidArgumentError, match=f"is {VOCAB}: expected"):
        llm.stream([VOCAB])
    with pytest.raises(InvalidArgumentError, match="whole numbers"):
        llm.stream([1.5])
    for ids in (b"x", bytearray(b"x"), memoryview(b"x"), {1: 2}, {5, 6}):
        for call in (llm.stream, llm.logits, llm.score, llm.detokenize):
            with pytest.raises(InvalidArgumentError, match=f"{type(ids).__name__} is no sequence"):
                call(ids)


def test_a_seed_is_reported_and_gives_the_text_again(make):
    llm = make(noise)
    first = llm.generate("x", max_tokens=40, temperature=2)
    again = llm.generate("x", max_tokens=40, temperature=2, seed=first.seed)
    assert again.text == first.text
    assert llm.generate("x", max_tokens=40, temperature=2).text != first.text


def test_closing_a_stream_cancels_the_rest(make):
    passes = []
    llm = make(noise, before=lambda batch: passes.append(time.sleep(0.002)))
    parts = llm.stream("x")
    next(parts)
    parts.close()
    llm.generate("y", max_tokens=1)
    assert len(passes) < 20


def test_eight_threads_get_the_texts_that_they_get_alone(make):
    def ask(llm, i):
        return llm.generate("ab" * i, max_tokens=10 + i, seed=i, temperature=1.5).text

    llm = make(noise)
    alone = [ask(llm, i) for i in range(8)]
    together = {}
    threads = [
        threading.Thread(target=lambda i=i: together.update({i: ask(llm, i)})) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [together[i] for i in range(8)] == alone


def test_close_while_a_call_runs_and_calls_after_it(make):
    llm = make(noise, before=lambda batch: time.sleep(0.01))
    parts = llm.stream("x")
    next(parts)
    llm.close()
    with pytest.raises(CancelledError, match="closed"):
        list(parts)
    with pytest.raises(llama3jit.Llama3JitError, match="closed"):
        llm.generate("x")


def test_logits_of_every_position(make):
    ids = [BOS, *b"some words"] * 9
    logits = make(noise).logits(ids)
    assert (logits.shape, logits.dtype) == ((99, VOCAB), np.float32)
    for t in (0, 7, 8, 50, 98):
        np.testing.assert_array_equal(logits[t], noise(ids[: t + 1]))


@pytest.mark.parametrize("length", [2, 16, 17, 40, 100])
def test_score_gives_each_token_once_with_half_a_context_before_it(make, length):
    n_ctx = 16
    ids = [(11 * i * i) % 250 for i in range(length)]
    expected = 0.0
    for t in range(1, length):
        begin = 0 if t < n_ctx else ((t - n_ctx) // 8 + 1) * 8
        row = noise(ids[begin:t]).astype(np.float64)
        expected += math.log(np.exp(row).sum()) - row[ids[t]]
    score = make(noise, n_ctx=n_ctx).score(ids)
    assert score.tokens == length - 1
    assert score.nll == pytest.approx(expected, rel=1e-6)
    assert score.perplexity == pytest.approx(math.exp(expected / score.tokens), rel=1e-6)
    assert score.logprobs is None
    each = make(noise, n_ctx=n_ctx).score(ids, per_token=True).logprobs
    assert len(each) == length - 1
    assert -math.fsum(each) == pytest.approx(score.nll)


def test_score_needs_two_tokens_and_finite_logits(make):
    with pytest.raises(InvalidArgumentError, match="has 1 token"):
        make(noise).score([5])
    with pytest.raises(NumericsError, match="after token 1 "):
        make(lambda history: np.full(VOCAB, np.nan, np.float32)).score([5, 6, 7])


def test_logprobs(make):
    result = make(noise).generate("x", max_tokens=5, logprobs=True, seed=0)
    row = noise([BOS, *b"x"]).astype(np.float64)
    first = row[result.tokens[0]] - math.log(np.exp(row).sum())
    assert result.logprobs[0] == pytest.approx(first, abs=1e-5)
    assert len(result.logprobs) == 5


def test_tokenize_and_detokenize(make):
    llm = make(noise)
    assert llm.tokenize("hé") == [BOS, *"hé".encode()]
    assert llm.detokenize(llm.tokenize("hé", add_bos=False)) == "hé"


def run_script(body, *, interrupt_after=None, timeout=20):
    """Run Python in a process of its own; with SIGINT after its first line of output."""
    code = "from scripted import *\n" + textwrap.dedent(body)
    here = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        env={**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if interrupt_after is not None:
            assert process.stdout.readline() == f"{interrupt_after}\n"
            time.sleep(0.1)
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=timeout)
    finally:
        process.kill()
        process.wait()
    return out, err, process.returncode


@pytest.mark.parametrize("prompt", [1, 100])
def test_ctrl_c_stops_a_call_within_a_second(prompt):
    out, err, status = run_script(
        f"""
        import time
        both = scripted_llama(noise, before=lambda batch: both.runner.cancelled.wait(30))
        try:
            print("ready", flush=True)
            both.llama.generate([1] * {prompt})
        except KeyboardInterrupt:
            began = time.perf_counter()
            both.runner.before = None
            print(both.llama.generate([1], max_tokens=3).completion_tokens)
            assert time.perf_counter() - began < 1
        """,
        interrupt_after="ready",
    )
    assert (out, err, status) == ("3\n", "", 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_gets_a_clear_error():
    out, err, status = run_script(
        """
        import os, time
        gate = threading.Event()
        stalled = lambda batch: batch.positions[0] > 3 and gate.wait(10)
        llm = scripted_llama(noise, before=stalled).llama
        parts = llm.stream("x", max_tokens=9)
        next(parts)
        pid = os.fork()
        if pid == 0:
            for call in (lambda: llm.generate("x"), lambda: list(parts)):
                try:
                    call()
                except Exception as error:
                    print(type(error).__name__, "forked" in str(error), flush=True)
            llm.close()
            os._exit(0)
        os.waitpid(pid, 0)
        gate.set()
        print(llm.generate("x", max_tokens=3).finish_reason)
        """
    )
    assert (out, status) == ("DeviceError True\nDeviceError True\nlength\n", 0), err


def test_an_unclosed_model_does_not_hold_up_the_exit():
    began = time.perf_counter()
    out, err, status = run_script(
        """
        both = scripted_llama(noise, before=lambda batch: both.runner.cancelled.wait(30))
        threading.Thread(target=lambda: both.llama.generate("x"), daemon=True).start()
        import time
        time.sleep(0.2)
        print("leaving")
        """
    )
    assert (out, status) == ("leaving\n", 0), err
    assert time.perf_counter() - began < 5
