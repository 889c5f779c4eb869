"""Sessions on a scripted model: turns, forks, rewinds and files."""

import asyncio
import contextlib
import dataclasses
import json
import os
import stat
import threading
import time

import numpy as np
import pytest
from scripted import ASSISTANT, END, LIMITS, USER, noise, peak, replying, scripted_llama

import llama3jit
from llama3jit.engine.snapshot import CacheSnapshot
from llama3jit.errors import (
    CancelledError,
    ContextOverflowError,
    InvalidArgumentError,
    SessionError,
    TemplateError,
)
from llama3jit.opening import Identity
from llama3jit.talk import continued


def echo(history):
    """Answers with the last message in capitals."""
    said = history[max(i for i, token in enumerate(history) if token == USER) + 1 :]
    at = said.index(ASSISTANT)
    reply = [*bytes(said[:at]).upper(), END]
    return peak(reply[min(len(said) - at - 1, len(reply) - 1)])


@pytest.fixture
def make():
    opened = []

    def build(script=echo, before=None, identity=None, **changes):
        limits = dataclasses.replace(LIMITS, **changes)
        opened.append(both := scripted_llama(script, limits, before))
        if identity is not None:
            both.llama._identity = Identity(lambda: identity[0], *identity[1:])
        return both.llama

    yield build
    for both in opened:
        both.llama.close()


def contents(session):
    return [message["content"] for message in session.messages]


def test_a_session_remembers_its_turns(make):
    llm = make()
    with llm.session("be loud", temperature=0) as session:
        assert session.say("one").text == "ONE"
        parts = list(session.stream("two"))
        assert "".join(part.text for part in parts) == parts[-1].result.text == "TWO"
        assert contents(session) == ["be loud", "one", "ONE", "two", "TWO"]
        assert [m["role"] for m in session.messages[1:]] == ["user", "assistant"] * 2
        expected = llm._template.encode([*session.messages, {"role": "user", "content": "x"}])
        result = session.say("x")
        assert result.prompt_tokens == len(expected)
        assert session.n_tokens == len(expected) + 1


def test_each_turn_is_what_chat_gives(make):
    llm = make(noise)
    session = llm.session(max_tokens=6, seed=3)
    messages = []
    for text in ("a", "bc", "d"):
        messages.append({"role": "user", "content": text})
        result = session.say(text)
        # The reply is bytes that may be no text; what the model wrote is what it goes on from.
        assert result.tokens == list(session._talk.tokens[-6:])
        messages.append({"role": "assistant", "content": result.text})
        assert session.messages == messages
        expected = llm.chat(messages[:-1], max_tokens=6, seed=3)
        if all("�" not in message["content"] for message in messages):
            assert result.text == expected.text


def test_sampling_of_the_session_and_of_a_turn(make):
    session = make().session(max_tokens=2)
    assert session.say("hello").text == "HE"
    assert session.say("hello", max_tokens=4).text == "HELL"
    assert session.say("hello").text == "HE"
    with pytest.raises(InvalidArgumentError, match="max_token'"):
        make().session(max_token=2)
    with pytest.raises(InvalidArgumentError, match="top_p is 3"):
        session.stream("x", top_p=3)
    with pytest.raises(InvalidArgumentError, match="the message is 5"):
        session.say(5)
    assert len(session.messages) == 6


def test_messages_to_begin_with_are_checked_and_copied(make):
    begun = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "A"}]
    session = make().session("s", messages=begun)
    begun[0]["content"] = "changed"
    session.messages[0]["content"] = "changed"
    assert contents(session) == ["s", "a", "A"]
    assert session.say("b").text == "B"
    with pytest.raises(InvalidArgumentError, match=r"messages\[1\]"):
        make().session("s", messages=[{"role": "user"}])


def test_a_fork_goes_its_own_way(make):
    session = make().session()
    session.say("one")
    other = session.fork()
    session.say("two")
    other.say("three")
    assert contents(session) == ["one", "ONE", "two", "TWO"]
    assert contents(other) == ["one", "ONE", "three", "THREE"]
    session.close()
    assert other.say("four").text == "FOUR"


def test_a_fork_in_the_middle_of_a_turn_is_without_it(make):
    session = make().session()
    session.say("one")
    with contextlib.closing(session.stream("two")) as parts:
        next(parts)
        assert contents(session.fork()) == ["one", "ONE"]


def test_rewind(make):
    session = make().session("s")
    held = [session.n_tokens]
    for text in ("one", "two", "three"):
        session.say(text)
        held.append(session.n_tokens)
    removed = session.rewind(2)
    assert [m["content"] for m in removed] == ["two", "TWO", "three", "THREE"]
    assert contents(session) == ["s", "one", "ONE"]
    assert session.n_tokens == held[1]
    assert session.say("four").text == "FOUR"
    assert session.rewind(0) == []
    for wrong in (3, -1, True, 1.0, "1"):
        with pytest.raises(InvalidArgumentError, match="turns is"):
            session.rewind(wrong)
    session.rewind(2)
    assert (contents(session), session.n_tokens) == (["s"], 0)


def test_one_turn_at_a_time(make):
    session = make().session()
    first = session.stream("one")
    second = session.stream("two")
    next(first)
    for call in (session.rewind, lambda: session.say("x"), lambda: session.save("unused")):
        with pytest.raises(SessionError, match="in the middle of a turn"):
            call()
    assert "".join(part.text for part in first) == "NE"
    with pytest.raises(SessionError, match="has gone on"):
        next(second)
    assert contents(session) == ["one", "ONE"]


def test_a_stream_that_is_left_keeps_what_there_is(make):
    session = make().session()
    parts = session.stream("hello")
    next(parts)
    next(parts)
    parts.close()
    assert contents(session) == ["hello", "HE"]
    assert session.say("x").text == "X"
    parts = session.stream("never begun")
    parts.close()
    assert len(session.messages) == 4


def test_a_turn_without_any_text_is_taken_back(make):
    session = make(replying("你")).session()
    parts = session.stream("hello")
    next(parts)
    parts.close()
    assert session.messages == []


def test_leaving_after_the_last_part_changes_nothing(make):
    session = make().session()
    parts = session.stream("ab")
    for part in parts:
        if part.result is not None:
            break
    parts.close()
    assert contents(session) == ["ab", "AB"]


def test_a_turn_that_fails_is_taken_back(make):
    llm = make(noise, n_ctx=64)
    session = llm.session(max_tokens=3)
    session.say("a")
    before = session.messages
    with pytest.raises(ContextOverflowError):
        session.say("x" * 100)
    llm._engine._core.runner.before = lambda batch: 1 / 0
    for call in (lambda: session.say("b"), lambda: list(session.stream("b"))):
        with pytest.raises(Exception, match="ZeroDivision"):
            call()
    llm._engine._core.runner.before = None
    assert session.messages == before
    session.say("c")


def test_ctrl_c_takes_say_back_and_keeps_a_stream(make, monkeypatch):
    session = make().session()
    generation = type(session._begin("x", {}).generation)
    whole = generation.parts

    def interrupted(self):
        parts = whole(self)
        yield next(parts)
        raise KeyboardInterrupt

    monkeypatch.setattr(generation, "parts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.say("one")
    assert session.messages == []
    with pytest.raises(KeyboardInterrupt):
        list(session.stream("one"))
    assert contents(session) == ["one", "O"]


def test_in_an_event_loop(make):
    session = make().session()

    async def talk():
        assert (await session.asay("one")).text == "ONE"
        assert "".join([part.text async for part in session.astream("two")]) == "TWO"
        async with contextlib.aclosing(session.astream("three")) as parts:
            async for _ in parts:
                break

    asyncio.run(talk())
    assert contents(session) == ["one", "ONE", "two", "TWO", "three", "T"]


def test_cancelling_a_task_takes_its_turn_back(make):
    llm = make(noise, before=lambda batch: time.sleep(0.005))
    session = llm.session()

    async def talk():
        task = asyncio.create_task(session.asay("one"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(talk())
    assert session.messages == []
    assert session.say("x", max_tokens=1).completion_tokens == 1


def test_sessions_of_many_threads(make):
    llm = make()
    texts = {}

    def talk(i):
        session = llm.session()
        texts[i] = [session.say(f"{word} {i}").text for word in ("a", "bc", "def")]

    threads = [threading.Thread(target=talk, args=[i]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert texts == {i: [f"A {i}", f"BC {i}", f"DEF {i}"] for i in range(8)}


def test_a_closed_session_and_a_closed_model(make):
    llm = make(noise, before=lambda batch: time.sleep(0.01))
    session = llm.session()
    other = llm.session()
    session.close()
    session.close()
    for call in (session.rewind, session.fork, lambda: session.say("x")):
        with pytest.raises(SessionError, match="is closed"):
            call()
    parts = other.stream("hello")
    next(parts)
    llm.close()
    with pytest.raises(CancelledError):
        list(parts)
    assert other.messages == []


def test_a_template_that_refuses_leaves_the_session(make):
    llm = make()

    class Refusing:
        def encode(self, messages):
            raise TemplateError("no")

    session = llm.session()
    session.say("a")
    llm.__dict__["_template"] = Refusing()
    with pytest.raises(TemplateError):
        session.say("b")
    assert len(session.messages) == 2


# A conversation that outgrows its context.


def test_a_full_context_is_an_error_or_drops_turns(make):
    llm = make()
    session = llm.session("sys")
    for i in range(5):
        session.say(f"message {i}")
    with pytest.raises(ContextOverflowError):
        session.say("x" * 40)
    n = len(session.messages)
    result = session.say("more", on_overflow="shift")
    assert result.text == "MORE"
    assert result.dropped_turns > 1
    assert len(session.messages) == n + 2
    assert result.prompt_tokens < 128 - 32


def test_a_long_conversation_never_ends_for_want_of_context(make):
    session = make().session("sys", on_overflow="shift")
    dropped, firsts = [], set()
    for i in range(60):
        result = session.say(f"message {i}", max_tokens=20)
        assert result.text == f"MESSAGE {i}"
        assert result.prompt_tokens + 20 <= 128
        dropped.append(result.dropped_turns)
        firsts.add(session.left_out_turns)
    assert dropped == sorted(dropped)
    assert dropped[-1] > 50
    # Turns go several at a time, so that most turns go on from what the cache holds.
    assert len(firsts) <= 30
    assert len(session.messages) == 121
    assert result.dropped_tokens > 1000
    session.rewind(59)
    assert session.say("x").dropped_turns == 0


# The tokens that a model wrote stay, where they spell the text.


class Pairs:
    """A tokenizer whose ids 300 and up stand for two letters."""

    special_ids = frozenset({256})

    def token_bytes(self, token):
        return b"ab" if token == 300 else b"<s>" if token == 256 else bytes([token])


@pytest.mark.parametrize(
    ("held", "prompt", "expected"),
    [
        ([], [1, 2], [1, 2]),
        ([1, 97, 98], [1, 300, 5], [1, 97, 98, 5]),
        ([1, 300], [1, 97, 98, 5], [1, 300, 5]),
        ([1, 97], [1, 300, 5], [1, 300, 5]),  # ends inside of a token
        ([1, 97, 98], [2, 300, 5], [2, 300, 5]),
        ([1, 97, 98], [1], [1]),
        ([256, 97, 98], [256, 300], [256, 97, 98]),
        ([256, 97, 98], [*b"<s>", 300], [*b"<s>", 300]),  # text, not the special token
    ],
)
def test_held_tokens_go_before_a_prompt_of_the_same_text(held, prompt, expected):
    assert continued(Pairs(), held, prompt) == expected


# Files.


def test_a_saved_session_goes_on(make, tmp_path):
    path = tmp_path / "talk.session"
    llm = make()
    session = llm.session("sys", max_tokens=30, stop=["zz"], temperature=0)
    session.say("one \udc80 \U0001f3cb")
    session.save(path)
    again = make().load_session(path)
    assert again.messages == session.messages
    assert again._talk == session._talk
    assert again.say("two", max_tokens=2).text == session.say("two", max_tokens=2).text == "TW"
    assert again._sampling == {"max_tokens": 30, "stop": ["zz"], "temperature": 0}
    assert llm.load_session(path, max_tokens=1).say("two").text == "T"
    with pytest.raises(InvalidArgumentError, match="max_token'"):
        llm.load_session(path, max_token=1)
    assert os.listdir(tmp_path) == ["talk.session"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_empty_session_is_saved_too(make, tmp_path):
    make().session().save(tmp_path / "s")
    assert make().load_session(tmp_path / "s").messages == []


def test_a_session_goes_on_from_its_cache_here_and_where_it_is_loaded(make, tmp_path):
    llm, other = make(), make()
    session = llm.session()
    session.say("a message of more than a block")
    n_cached = session.n_tokens  # the reply was read whole before its end was chosen
    session.save(tmp_path / "s")
    again = other.load_session(tmp_path / "s")
    for each in (session, again):
        assert each.say("more").stats.cached_tokens == n_cached


def test_blocks_of_the_cache_go_through_the_file(make, tmp_path, monkeypatch):
    llm = make()
    session = llm.session()
    session.say("a message of more than a block")
    rng = np.random.default_rng(0)
    held = session._talk.tokens[:-1]
    n_blocks = -(-len(held) // LIMITS.block_tokens)
    blocks = list(rng.integers(0, 256, (n_blocks, 1000), np.uint8))
    asked, given = [], []

    def save_cache(tokens):
        asked.append(tokens)
        return CacheSnapshot(held, blocks)

    monkeypatch.setattr(llm._engine, "save_cache", save_cache)
    monkeypatch.setattr(llm._engine, "load_cache", given.append)
    session.save(tmp_path / "s")
    llm.load_session(tmp_path / "s")
    assert asked == [list(session._talk.tokens)]
    assert tuple(given[0].tokens) == held
    np.testing.assert_array_equal(np.array(given[0].blocks), blocks)
    whole = (tmp_path / "s").read_bytes()
    (tmp_path / "s").write_bytes(whole[:-2000] + b"\0" + whole[-1999:])
    with pytest.raises(SessionError, match="not what was written"):
        llm.load_session(tmp_path / "s")
    assert len(given) == 1


def test_arguments_in_a_file(make, tmp_path):
    llm = make()
    sampling = {
        "logit_bias": {np.int64(5): np.float32(1.5), 97: -2},
        "dry_sequence_breakers": ("\n", ":"),
        "temperature": np.float64(0.5),
        "seed": np.int64(3),
    }
    session = llm.session(**sampling, logits_processors=[lambda ids, logits: None])
    session.save(tmp_path / "s")
    assert llm.load_session(tmp_path / "s")._sampling == {
        "logit_bias": {5: 1.5, 97: -2},
        "dry_sequence_breakers": ["\n", ":"],
        "temperature": 0.5,
        "seed": 3,
    }


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (("b", "f16", "fast"), "a session with another model"),
        (("a", "q8_0", "fast"), "kv_dtype 'f16', and the model was loaded with 'q8_0'"),
        (("a", "f16", "exact"), "precision 'fast', and the model was loaded with 'exact'"),
    ],
)
def test_another_model_or_cache_is_refused(make, tmp_path, identity, message):
    llm = make(identity=("a", "f16", "fast"))
    session = llm.session()
    session.say("x")
    session.save(tmp_path / "s")
    assert llm.load_session(tmp_path / "s").messages == session.messages
    with pytest.raises(SessionError, match=message):
        make(identity=identity).load_session(tmp_path / "s")


def saved(make, tmp_path):
    llm = make()
    session = llm.session()
    session.say("one")
    session.save(tmp_path / "s")
    return llm, (tmp_path / "s").read_bytes()


def test_a_file_that_was_cut_short_or_changed_is_refused(make, tmp_path):
    llm, whole = saved(make, tmp_path)
    path = tmp_path / "broken"
    for size in [*range(60), *range(60, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(SessionError, match=r"cut short|is no session|broken"):
            llm.load_session(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(SessionError, match="too long"):
        llm.load_session(path)
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(whole), 200):
        changed = bytearray(whole)
        changed[at] ^= 1 << rng.integers(8)
        path.write_bytes(changed)
        with pytest.raises(SessionError):
            llm.load_session(path)
    for missing in (tmp_path / "missing", tmp_path):
        with pytest.raises(SessionError, match="cannot be read"):
            llm.load_session(missing)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("talk", {}),
        ("talk", []),
        ("talk", {"messages": [{"role": 1, "content": "x"}]}),
        ("talk", {"messages": 5}),
        ("talk", {"left_out_turns": float("inf")}),
        ("sampling", {"max_tokens": "many"}),
        ("sampling", {"nonsense": 1}),
        ("sampling", {"logit_bias": 5}),
        ("sampling", {"logit_bias": {"x": 5}}),
        ("sampling", {"sampler": 5}),
        ("sampling", None),
        ("n_blocks", -1),
        ("n_blocks", 10**30),
        ("n_cached", 10**30),
        ("n_cached", True),
        ("model", None),
    ],
)
def test_a_header_with_nonsense_is_refused(make, tmp_path, entry, value):
    import hashlib

    llm, whole = saved(make, tmp_path)
    n = int.from_bytes(whole[8:16], "little")
    header = json.loads(whole[16 : 16 + n])
    if isinstance(value, dict) and entry == "talk" and value:
        value = {**header["talk"], **value}
    header[entry] = value
    encoded = json.dumps(header).encode()
    forged = whole[:8] + len(encoded).to_bytes(8, "little") + encoded + whole[16 + n : -32]
    (tmp_path / "forged").write_bytes(forged + hashlib.sha256(forged).digest())
    with pytest.raises(SessionError):
        llm.load_session(tmp_path / "forged")


def test_a_file_that_cannot_be_written_leaves_the_old_one(make, tmp_path, monkeypatch):
    llm, whole = saved(make, tmp_path)
    session = llm.load_session(tmp_path / "s")
    session.say("two")
    monkeypatch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(SessionError, match="disk full"):
        session.save(tmp_path / "s")
    assert (tmp_path / "s").read_bytes() == whole
    assert os.listdir(tmp_path) == ["s"]
    with pytest.raises(SessionError, match="cannot be written"):
        session.save(tmp_path / "no folder" / "s")


# Real weights.


@pytest.mark.parametrize("path", [3, None, "a\0b"])
def test_what_is_no_path_is_refused(make, path):
    llm = make()
    with pytest.raises(SessionError, match="path of the session"):
        llm.session().save(path)
    with pytest.raises(SessionError, match="path of the session"):
        llm.load_session(path)


def test_stop_strings_of_an_iterator_end_every_turn(make):
    session = make().session(stop=iter(["E"]), temperature=0)
    assert [session.say(text).text for text in ("one", "one")] == ["ON", "ON"]


def test_messages_that_are_no_list_are_refused(make):
    with pytest.raises(InvalidArgumentError, match="messages is 3"):
        make().session(messages=3)


@pytest.fixture(scope="module")
def real():
    path = os.environ.get("LLAMA3JIT_TEST_MODEL")
    if not path:
        pytest.skip("LLAMA3JIT_TEST_MODEL names no model file")
    with llama3jit.load(path, device="cpu", n_ctx=1024) as llm:
        yield llm


def test_a_conversation_forks_and_is_saved(real, tmp_path):
    session = real.session("You are brief.", max_tokens=24, seed=5, temperature=0.9)
    session.say("Name a river in Europe.")
    session.say("And one in Africa?")
    session.save(tmp_path / "s")
    fork, again = session.fork(), real.load_session(tmp_path / "s")
    texts = {talk.say("Which is longer?").text for talk in (session, fork, again)}
    assert len(texts) == 1
    session.rewind(2)
    first = session.say("And one in Africa?").text
    assert first == again.messages[4]["content"]


def test_real_weights_of_another_kind_are_refused(real, tmp_path):
    real.session("You are brief.").save(tmp_path / "s")
    path = os.environ["LLAMA3JIT_TEST_MODEL"]
    with llama3jit.load(path, device="cpu", n_ctx=256, kv_dtype="q8_0") as other:
        with pytest.raises(SessionError, match="kv_dtype 'f16'"):
            other.load_session(tmp_path / "s")
        assert other._identity.fingerprint() == real._identity.fingerprint()
