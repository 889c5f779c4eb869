"""Sampling arguments of the Python face beside the numbers: response formats, callables, texts."""

import json
import threading

import numpy as np
import pytest

from llama3jit.errors import InvalidArgumentError, UnsupportedError
from tests.scripted import END, noise, replying, scripted_llama

PET = {
    "type": "json_object",
    "schema": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"enum": [1, 2, 3]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def llama():
    with scripted_llama(noise).llama as llm:
        yield llm


def chat(llm, **sampling):
    return llm.chat([{"role": "user", "content": "hi"}], **sampling)


class TestResponseFormat:
    @pytest.fixture(autouse=True)
    def library(self):
        pytest.importorskip("llguidance")

    @pytest.mark.parametrize("seed", range(5))
    def test_the_text_parses_or_the_finish_reason_says_why_not(self, llama, seed):
        result = chat(llama, response_format=PET, seed=seed, max_tokens=60)
        assert result.finish_reason == "stop"
        assert set(json.loads(result.text)) == {"name", "age"}
        short = chat(llama, response_format=PET, seed=seed, max_tokens=5)
        assert short.finish_reason == "length"

    def test_beside_others_that_are_free_or_held_differently(self, llama):
        kinds = [
            {"response_format": PET},
            {},
            {"response_format": {"type": "regex", "regex": "[ab]{9}"}},
            {"response_format": {"type": "text"}},
        ]
        jobs = [kinds[i % 4] | {"seed": i, "max_tokens": 50} for i in range(12)]
        alone = [chat(llama, **job).text for job in jobs]
        together = [""] * len(jobs)

        def work(i):
            together[i] = chat(llama, **jobs[i]).text

        threads = [threading.Thread(target=work, args=[i]) for i in range(len(jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert together == alone

    def test_stop_and_min_tokens_go_against_it(self, llama):
        with pytest.raises(InvalidArgumentError, match=r"^stop is .* leave stop out"):
            chat(llama, response_format=PET, stop=["}"])
        with pytest.raises(InvalidArgumentError, match=r"^min_tokens is 3 .* leave min_tokens out"):
            chat(llama, response_format=PET, min_tokens=3)
        text = chat(llama, response_format={"type": "text"}, stop="x", max_tokens=3).text
        assert "x" not in text

    def test_a_space_at_the_start_stays(self, llama):
        llama._tokenizer.add_space_prefix = True
        result = chat(llama, response_format={"type": "regex", "regex": " a"})
        assert result.text == " a"

    def test_what_it_forbids_cannot_be_forced(self, llama):
        with pytest.raises(InvalidArgumentError, match=r"no token is left by .* response format"):
            chat(
                llama,
                response_format={"type": "regex", "regex": "ab"},
                logit_bias={ord("b"): -float("inf")},
            )


def test_a_wrong_response_format_raises_before_work_begins(llama):
    with pytest.raises(InvalidArgumentError, match="response_format is"):
        llama.stream("x", response_format={"type": "yaml"})


def test_without_the_library_the_extra_is_named(llama, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(UnsupportedError, match=r"llama3jit\[constrained\]"):
        chat(llama, response_format={"type": "json_object"})


def test_callables_are_keyword_arguments(llama):
    def only_a(ids, logits):
        logits[:] = -np.inf
        logits[97] = 0

    result = llama.generate("x", logits_processors=[only_a], max_tokens=3)
    assert result.text == "aaa"
    assert llama.generate("x", logits_processors=only_a, max_tokens=2).text == "aa"
    result = llama.generate("x", sampler=lambda logits, state: 98 + state.step, max_tokens=3)
    assert result.text == "bcd"
    result = llama.generate(
        "x",
        logits_processors=(only_a,),
        stopping_criteria=[lambda ids, logits: len(ids) == 6],
    )
    assert result.text == "aaaa"  # after BOS and x
    assert result.finish_reason == "stop"


def test_a_list_that_can_be_called_is_a_list(llama):
    class LogitsProcessorList(list):
        def __call__(self, ids, logits):
            raise AssertionError

    def only_a(ids, logits):
        logits[97] = 1000

    processors = LogitsProcessorList([only_a])
    assert llama.generate("x", logits_processors=processors, max_tokens=2).text == "aa"


@pytest.mark.parametrize("name", ["logits_processors", "sampler", "stopping_criteria"])
@pytest.mark.parametrize("value", [3, [3], "f"])
def test_what_is_no_function_is_refused_by_name(llama, name, value):
    with pytest.raises(InvalidArgumentError, match=f"^{name} (is|has) "):
        llama.generate("x", **{name: value})


def test_an_error_in_a_callable_reaches_the_caller_and_nobody_else(llama):
    def wrong(ids, logits):
        raise LookupError("mine")

    for name in ("logits_processors", "stopping_criteria"):
        with pytest.raises(LookupError, match="mine"):
            llama.generate("x", **{name: [wrong]})
    with pytest.raises(LookupError, match="mine"):
        llama.generate("x", sampler=wrong)
    assert llama.generate("x", max_tokens=2).completion_tokens == 2


def test_top_logprobs_come_with_parts_and_results(llama):
    parts = list(llama.stream("x", max_tokens=3, temperature=0, logprobs=True, top_logprobs=2))
    result = parts[-1].result
    assert [part.logprob for part in parts[:-1]] == result.logprobs
    assert [part.top_logprobs for part in parts[:-1]] == result.top_logprobs
    for token, chance, best in zip(
        result.tokens, result.logprobs, result.top_logprobs, strict=True
    ):
        assert best[0] == (token, chance)
        assert len(best) == 2
        assert best[1][1] <= chance
    assert llama.generate("x", max_tokens=1).top_logprobs is None


def test_dry_breaks_a_loop_and_its_breakers_let_it_be():
    """A model that says `ab` for ever."""

    def loop(history):
        row = np.zeros(260, np.float32)
        row[ord("b") if history[-1] == ord("a") else ord("a")] = 4.0
        row[ord("c")] = 3.0
        row[END] = -50
        return row

    with scripted_llama(loop).llama as llm:
        plain = {"temperature": 0, "max_tokens": 24}
        assert llm.generate("a", **plain).text == "ba" * 12
        dry = plain | {"dry_multiplier": 1.0}
        assert "babababa" not in llm.generate("a", **dry).text
        assert llm.generate("a", **dry, dry_sequence_breakers=["a"]).text == "ba" * 12
        assert llm.generate("a", **dry, dry_penalty_last_n=0).text == "ba" * 12


def test_a_session_keeps_what_can_be_kept(tmp_path):
    """Biases by id become texts in JSON, and ids again."""
    with scripted_llama(replying("ok")).llama as llm:
        session = llm.session(logit_bias={65: 100.0}, max_tokens=2, repeat_penalty=1.1)
        assert session.say("x").text == "AA"
        session.save(tmp_path / "s")
        assert llm.load_session(tmp_path / "s").say("x").text == "AA"


@pytest.mark.parametrize(
    "given",
    [
        {"type": "regex", "regex": "\ud800"},
        {"type": "grammar", "grammar": 'start: "\ud800"'},
        {"type": "json_object", "schema": {"enum": [{1}]}},
        {"type": "json_object", "schema": {"const": float("nan")}},
        {"type": "json_object", "schema": {"const": "\ud800"}},
    ],
)
def test_a_response_format_that_is_no_text_or_json_is_refused(llama, given):
    pytest.importorskip("llguidance")
    with pytest.raises(InvalidArgumentError, match="response_format"):
        chat(llama, response_format=given)
