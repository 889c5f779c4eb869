"""create_completion on a scripted model: shapes, arguments by name, logprobs of raw bytes."""

import dataclasses
import inspect
import math

import numpy as np
import pytest
from scripted import BOS, END, LIMITS, VOCAB, noise, peak, scripted_llama

from llama3jit.errors import ContextOverflowError, InvalidArgumentError, UnsupportedError

# create_completion of llama-cpp-python 0.3.36, by llama.py.
PARAMETERS = {
    "suffix": None,
    "max_tokens": 16,
    "temperature": 0.8,
    "top_p": 0.95,
    "min_p": 0.05,
    "typical_p": 1.0,
    "logprobs": None,
    "echo": False,
    "stop": None,  # [] there
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repeat_penalty": 1.0,
    "top_k": 40,
    "stream": False,
    "seed": None,
    "tfs_z": 1.0,
    "mirostat_mode": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "model": None,
    "stopping_criteria": None,
    "logits_processor": None,
    "grammar": None,
    "logit_bias": None,
}


@pytest.fixture
def make():
    opened = []

    def build(script, **changes):
        both = scripted_llama(script, dataclasses.replace(LIMITS, **changes))
        opened.append(both)
        return both.llama

    yield build
    for both in opened:
        both.llama.close()
        both.llama._engine._core.scheduler.pool.check([])


def saying(text, after="q"):
    """The bytes of a text after a prompt's last `after`, then END."""
    wanted = [*text.encode(), END]

    def script(history):
        since = history[::-1].index(ord(after))
        return peak(wanted[min(since, len(wanted) - 1)])

    return script


def joined(chunks, key="text"):
    return "".join(chunk["choices"][0][key] for chunk in chunks)


def test_the_signature_is_that_of_llama_cpp_python(make):
    given = inspect.signature(make(noise).create_completion).parameters
    assert list(given)[: len(PARAMETERS) + 1] == ["prompt", *PARAMETERS]
    assert {name: given[name].default for name in PARAMETERS} == PARAMETERS


def test_the_shape(make):
    llm = make(saying("Hello"))
    answer = llm("q", model="m")
    assert answer.keys() == {"id", "object", "created", "model", "choices", "usage"}
    assert answer["id"].startswith("cmpl-")
    assert (answer["object"], answer["model"]) == ("text_completion", "m")
    assert answer["choices"] == [
        {"text": "Hello", "index": 0, "logprobs": None, "finish_reason": "stop"}
    ]
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}
    assert llm.create_completion("q", max_tokens=3)["choices"][0]["finish_reason"] == "length"


def test_chunks_join_to_the_whole(make):
    llm = make(saying("naïve 好 text"))
    chunks = list(llm("q", stream=True, max_tokens=None))
    assert joined(chunks) == "naïve 好 text"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (
        len(chunks) - 1
    )
    assert chunks[-1]["choices"] == [
        {"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}
    ]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all(chunk["object"] == "text_completion" and "usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("limit", [None, 0, -1])
def test_no_limit_goes_on_to_the_end_of_the_context(make, limit):
    answer = make(noise, n_ctx=32)("q", max_tokens=limit, seed=1)
    assert answer["usage"]["total_tokens"] == 32


@pytest.mark.parametrize("stream", [False, True])
def test_echo(make, stream):
    llm = make(saying("Hello"))
    for prompt in ("a q", [BOS, *b"a q"]):
        answer = llm(prompt, echo=True, stream=stream)
        text = joined(answer) if stream else answer["choices"][0]["text"]
        assert text == "a qHello"


def naive(history, token):
    row = noise(history).astype(np.float64)
    return row[token] - math.log(np.exp(row).sum())


@pytest.mark.parametrize("echo", [False, True])
def test_logprobs_are_those_of_the_raw_logits(make, echo):
    llm = make(noise)
    found = llm("ab", max_tokens=6, logprobs=3, seed=5, echo=echo)["choices"][0]
    ids = [BOS, *b"ab", *llm.generate("ab", max_tokens=6, seed=5).tokens]
    first = 1 if echo else 3
    table = found["logprobs"]
    assert table.keys() == {"tokens", "text_offset", "token_logprobs", "top_logprobs"}
    assert len(table["tokens"]) == len(ids) - first
    for i, token in enumerate(ids[first:]):
        at = first + i
        data = bytes([token])
        name = data.decode() if token < 128 else f"bytes:\\x{token:02x}"
        assert table["tokens"][i] == name
        if at == 1:
            assert table["token_logprobs"][i] is table["top_logprobs"][i] is None
            continue
        assert table["token_logprobs"][i] == pytest.approx(naive(ids[:at], token), abs=1e-5)
        row = noise(ids[:at])
        assert table["top_logprobs"][i][name] == table["token_logprobs"][i]
        likeliest = np.argsort(-row, kind="stable")[:3]
        values = sorted(table["top_logprobs"][i].values(), reverse=True)
        assert values[:3] == pytest.approx([naive(ids[:at], t) for t in likeliest], abs=1e-5)
    assert table["text_offset"] == sorted(table["text_offset"])
    assert table["text_offset"][0] == (0 if echo else 2)


@pytest.mark.parametrize("stop", [None, "lo w", ["好", "zz"]])
def test_streamed_logprobs_join_to_the_whole(make, stop):
    llm = make(saying("hello world 好 end"))
    given = {"logprobs": 1, "stop": stop, "max_tokens": None}
    whole = llm("q", **given)["choices"][0]
    chunks = list(llm("q", stream=True, **given))
    tables = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for key in ("tokens", "text_offset", "token_logprobs", "top_logprobs"):
        assert [item for table in tables if table for item in table[key]] == whole["logprobs"][key]
    assert joined(chunks) == whole["text"]
    text = "".join(t for t in whole["logprobs"]["tokens"] if not t.startswith("bytes:"))
    assert text == whole["text"].replace("好", "")


def test_several_choices_have_seeds_of_their_own(make):
    llm = make(noise)
    answer = llm("ab", n=3, seed=7, max_tokens=8)
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert texts == [llm("ab", seed=7 + i, max_tokens=8)["choices"][0]["text"] for i in range(3)]
    assert answer["usage"]["completion_tokens"] == 24
    streamed = ["", "", ""]
    for chunk in llm("ab", n=3, seed=7, max_tokens=8, stream=True):
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert streamed == texts


def test_more_choices_than_sequences_of_a_batch(make):
    assert len(make(noise)("ab", n=20, max_tokens=3)["choices"]) == 20


def test_callables_and_biases(make):
    llm = make(noise)
    z = ord("z")

    def only_z(ids, scores):
        scores[:] = -50
        scores[z] = 50
        return scores

    assert llm("q", max_tokens=3, logits_processor=only_z)["choices"][0]["text"] == "zzz"
    assert llm("q", max_tokens=3, logits_processor=[only_z])["choices"][0]["text"] == "zzz"
    assert llm("q", max_tokens=3, logit_bias={z: 90.0})["choices"][0]["text"] == "zzz"
    assert llm("q", max_tokens=3, logit_bias={str(z): 90.0})["choices"][0]["text"] == "zzz"
    answer = llm("q", max_tokens=9, stopping_criteria=lambda ids, logits: len(ids) >= 4)
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_sampling_arguments_reach_the_sampler(make):
    llm = make(noise)
    for name in ("temperature", "top_p", "min_p", "typical_p", "top_k", "repeat_penalty"):
        with pytest.raises(InvalidArgumentError, match=f"^{name} is 'x'"):
            llm("q", **{name: "x"})
    greedy = llm("q", temperature=0)["choices"][0]["text"]
    assert llm("q", top_k=1)["choices"][0]["text"] == greedy
    whole = llm("q", top_k=-1, top_p=1.0, min_p=0, seed=3)["choices"][0]["text"]
    assert whole == llm.generate("q", top_k=0, top_p=1, min_p=0, seed=3, max_tokens=16).text
    assert llm("q", seed=3)["choices"][0]["text"] == llm.generate("q", seed=3, max_tokens=16).text
    assert llm("q", seed=3, dry_multiplier=0.8)["choices"]  # arguments of generate go through


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tfs_z": 0.5}, "^tfs_z is 0.5: tail-free"),
        ({"mirostat_mode": 1}, "^mirostat_mode is 1"),
        ({"logprobs": True}, "^logprobs is True"),
        ({"logprobs": -1}, "^logprobs is -1"),
        ({"n": 0}, "^n is 0"),
        ({"echo": 1}, "^echo is 1"),
        ({"stream": "yes"}, "^stream is 'yes'"),
        ({"best_of": 2}, "unknown argument 'best_of'"),
        ({"grammar": 3}, "^grammar is 3"),
        ({"grammar": "root ::= [", "response_format": {"type": "text"}}, "leave one out"),
        ({"stop": [""]}, "stop has ''"),
        ({"top_k": None}, "^top_k is None"),
        ({"max_tokens": False}, "^max_tokens is False"),
        ({"suffix": 3}, "suffix is 3"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_done_is_refused_by_name_at_once(make, given, message, stream):
    with pytest.raises(InvalidArgumentError, match=message):
        make(noise)("q", **{"stream": stream, **given})


def test_a_suffix_needs_a_model_that_fills_in(make):
    llm = make(noise)
    with pytest.raises(UnsupportedError, match="suffix is given, and the model's vocabulary"):
        llm("q", suffix="end")
    llm._metadata = {
        f"tokenizer.ggml.fim_{n}_token_id": i
        for n, i in zip(("pre", "suf", "mid"), (1, 2, 3), strict=True)
    }
    seen = []
    llm("ab", suffix="cd", max_tokens=1, stopping_criteria=lambda ids, logits: seen.extend(ids))
    assert seen[:-1] == [BOS, 1, *b"ab", 2, *b"cd", 3]


def test_a_prompt_that_is_too_long(make):
    assert issubclass(ContextOverflowError, ValueError)
    with pytest.raises(ContextOverflowError, match="40 tokens"):
        make(noise, n_ctx=32)([5] * 40)
    with pytest.raises(InvalidArgumentError, match=f"is {VOCAB}"):
        make(noise)([VOCAB])


def test_leaving_a_stream_cancels_it(make):
    llm = make(noise)
    chunks = llm("q", max_tokens=None, stream=True, n=2)
    next(chunks)
    chunks.close()
    assert llm._engine._core.scheduler.idle or llm("q", max_tokens=1)
