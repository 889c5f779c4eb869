"""Prompts that are too long: refused, or made to fit by leaving out what is oldest."""

import dataclasses

import pytest
from scripted import ASSISTANT, BOS, LIMITS, USER, noise, scripted_llama

from llama3jit.errors import ContextOverflowError, InvalidArgumentError
from llama3jit.overflow import fit_messages, fit_tokens, room_for_reply, split_turns


@pytest.fixture
def make():
    opened = []

    def build(script=noise, **changes):
        opened.append(both := scripted_llama(script, dataclasses.replace(LIMITS, **changes)))
        return both.llama

    yield build
    for both in opened:
        both.llama.close()


def turns(n, size=10):
    """n turns, the last one without its reply."""
    messages = []
    for i in range(n):
        messages.append({"role": "user", "content": chr(97 + i % 26) * size})
        messages.append({"role": "assistant", "content": chr(65 + i % 26) * size})
    return messages[:-1]


def prompt_of(llm):
    """The ids of the last prompt that was evaluated, as the runner saw them."""
    ids = []
    for batch in llm._engine._core.runner.batches:
        if batch.positions[0] == 0:
            ids = []
        ids += map(int, batch.tokens)
    return ids


def test_a_long_text_loses_its_oldest_tokens_but_bos(make):
    llm = make(n_ctx=64)
    text = "".join(chr(33 + i) for i in range(90))
    with pytest.raises(ContextOverflowError, match=r"91 tokens.*holds 64"):
        llm.generate(text, max_tokens=10)
    result = llm.generate(text, max_tokens=10, on_overflow="shift", seed=1)
    assert (result.prompt_tokens, result.completion_tokens) == (54, 10)
    assert (result.dropped_tokens, result.dropped_turns) == (37, 0)
    by_hand = llm.generate([BOS, *text[37:].encode()], max_tokens=10, seed=1)
    assert result.text == by_hand.text
    assert by_hand.dropped_tokens == 0


def test_a_prompt_that_leaves_room_stays_whole(make):
    llm = make(n_ctx=64)
    result = llm.generate("x" * 40, max_tokens=5, on_overflow="shift")
    assert (result.prompt_tokens, result.dropped_tokens) == (41, 0)


@pytest.mark.parametrize("max_tokens", [1, 7, 31, 32, 33, 10**9, None])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 500])
def test_max_tokens_and_the_context_always_bound_a_reply(make, length, max_tokens):
    llm = make(n_ctx=64)
    result = llm.generate("x" * length, max_tokens=max_tokens, on_overflow="shift")
    assert result.finish_reason == "length"
    assert result.completion_tokens <= (max_tokens or 64)
    assert result.prompt_tokens + result.completion_tokens <= 64
    assert result.completion_tokens >= min(max_tokens or 16, 32)
    assert result.prompt_tokens + result.dropped_tokens == length + 1


def test_a_long_conversation_loses_its_oldest_turns(make):
    llm = make()
    system = {"role": "system", "content": "be brief"}
    messages = [system, *turns(9)]
    with pytest.raises(ContextOverflowError):
        llm.chat(messages, max_tokens=20)
    result = llm.chat(messages, max_tokens=20, on_overflow="shift", seed=2)
    assert result.dropped_turns > 0
    assert result.prompt_tokens + 20 <= 128
    kept = [system, *messages[1 + 2 * result.dropped_turns :]]
    assert kept[1] == {"role": "user", "content": chr(97 + result.dropped_turns) * 10}
    alone = llm.chat(kept, max_tokens=20, seed=2)
    assert (alone.text, alone.prompt_tokens) == (result.text, result.prompt_tokens)
    whole = len(llm._template.encode(messages))
    assert result.dropped_tokens == whole - result.prompt_tokens
    # One turn less would not have left room.
    more = [system, *messages[1 + 2 * (result.dropped_turns - 1) :]]
    assert len(llm._template.encode(more)) + 20 > 128


def test_the_system_prompt_and_the_last_turn_are_never_dropped(make):
    llm = make()
    messages = [*turns(3), {"role": "assistant", "content": "ok"}]
    messages.append({"role": "user", "content": "z" * 120})
    result = llm.chat(messages, max_tokens=50, on_overflow="shift")
    assert prompt_of(llm)[:124] == [BOS, USER, *b"z" * 120, ASSISTANT, *prompt_of(llm)[123:124]]
    assert (result.dropped_turns, result.prompt_tokens) == (3, 123)
    assert result.completion_tokens == 5
    messages[-1] = {"role": "user", "content": "z" * 130}
    with pytest.raises(ContextOverflowError, match="133 tokens"):
        llm.chat(messages, on_overflow="shift")


def test_the_default_is_given_at_loading_and_overridden_in_a_call(make):
    llm = make(n_ctx=64)
    llm._on_overflow = "shift"
    assert llm.generate("x" * 100, max_tokens=3).dropped_tokens == 40
    assert llm.generate("x" * 100, max_tokens=3, on_overflow=None).dropped_tokens == 40
    with pytest.raises(ContextOverflowError):
        llm.generate("x" * 100, on_overflow="error")
    with pytest.raises(InvalidArgumentError, match=r"on_overflow is 'slide'; expected 'error'"):
        llm.stream("x", on_overflow="slide")
    with pytest.raises(InvalidArgumentError, match="max_tokens is 'many'"):
        llm.stream("x", max_tokens="many")


def test_fitting_renders_few_times_however_many_turns_there_are():
    asked = []

    def encode(messages):
        asked.append(len(messages))
        return [0] * sum(len(message["content"]) for message in messages)

    messages = turns(5000)
    fitted = fit_messages(messages, encode, 100, 20)
    assert len(asked) < 20
    assert len(fitted.tokens) == 70
    assert fitted.dropped_turns == 4996
    spared = fit_messages(messages, encode, 100, 20, spare=30)
    assert len(spared.tokens) == 50


def test_what_fits_is_rendered_once():
    asked = []
    fit_messages(turns(3), lambda messages: asked.append(1) or [0] * 50, 100, 50)
    assert len(asked) == 1


@pytest.mark.parametrize("n_ctx", [1, 2, 3])
def test_tiny_contexts(n_ctx):
    fitted = fit_tokens([BOS, 1, 2, 3, 4], n_ctx, room_for_reply(n_ctx, None), BOS)
    assert len(fitted.tokens) + fitted.dropped_tokens == 5
    assert len(fitted.tokens) == 2 or n_ctx < 3


def test_turns():
    def roles(text):
        full = {"s": "system", "u": "user", "a": "assistant", "t": "tool"}
        return [{"role": full[letter], "content": ""} for letter in text]

    for text, head, sizes in (
        ("suaua", 1, [2, 2]),
        ("ua", 0, [2]),
        ("ssuataa", 2, [5]),
        ("auau", 0, [1, 2, 1]),
        ("s", 1, []),
        ("", 0, []),
    ):
        found_head, found = split_turns(roles(text))
        assert (len(found_head), [len(turn) for turn in found]) == (head, sizes), text
