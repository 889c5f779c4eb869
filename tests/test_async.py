"""The twins for event loops: the same texts, cancelled with their tasks, on any loop and thread."""

import asyncio
import contextlib
import threading
import time

import pytest
from scripted import BOS, noise, replying, scripted_llama
from test_api import run_script

from llama3jit.errors import CancelledError, ContextOverflowError, InvalidArgumentError

USER_TURN = [{"role": "user", "content": "hi"}]


@pytest.fixture
def make():
    opened = []

    def build(script=noise, before=None):
        opened.append(both := scripted_llama(script, before=before))
        return both.llama

    yield build
    for both in opened:
        both.llama.close()
        both.llama._engine._core.scheduler.pool.check([])


def idle_soon(llm):
    """Whether the engine has nothing left to do within a moment."""
    deadline = time.perf_counter() + 5
    while time.perf_counter() < deadline:
        if llm._engine._core.scheduler.idle:
            return True
        time.sleep(0.001)
    return False


def test_the_twins_give_what_the_others_give(make):
    llm = make()
    sampling = {"max_tokens": 20, "temperature": 1.5, "seed": 4, "stop": "zz", "logprobs": True}

    async def ask():
        generated = await llm.agenerate("abc", **sampling)
        streamed = [part async for part in llm.astream("abc", **sampling)]
        return generated, streamed

    expected = llm.generate("abc", **sampling)
    generated, streamed = asyncio.run(ask())
    assert generated.text == expected.text
    assert generated.logprobs == expected.logprobs
    assert "".join(part.text for part in streamed) == expected.text
    assert [part.token for part in streamed[:-1]] == expected.tokens
    assert streamed[-1].result.finish_reason == expected.finish_reason == "length"


def test_the_twins_of_chat(make):
    llm = make(replying("Hello!"))

    async def ask():
        parts = [part.text async for part in llm.astream_chat(USER_TURN)]
        return parts, await llm.achat(USER_TURN, stop=["lo"])

    parts, result = asyncio.run(ask())
    assert "".join(parts) == "Hello!"
    assert (result.text, result.finish_reason) == ("Hel", "stop")


def test_wrong_arguments_raise_at_once(make):
    llm = make()
    with pytest.raises(InvalidArgumentError, match="max_token"):
        llm.astream("x", max_token=3)
    with pytest.raises(ContextOverflowError):
        llm.astream_chat([{"role": "user", "content": "x" * 200}])
    with pytest.raises(InvalidArgumentError, match="no tokens"):
        asyncio.run(llm.agenerate([]))


def test_many_at_once_share_the_batch_and_give_what_they_give_alone(make):
    llm = make()

    def ask(i):
        return {"prompt": "ab" * (i % 9), "max_tokens": 5 + i % 7, "seed": i, "temperature": 1.5}

    async def all_of(n):
        return await asyncio.gather(*(llm.agenerate(**ask(i)) for i in range(n)))

    alone = [llm.generate(**ask(i)).text for i in range(40)]
    assert [result.text for result in asyncio.run(all_of(40))] == alone
    assert max(len(b.context_lens) for b in llm._engine._core.runner.batches) == 8


@pytest.mark.parametrize("after", [0, 1, 5])
def test_cancelling_the_task_cancels_the_request(make, after):
    began = threading.Event()
    passes = []

    def slowly(batch):
        passes.append(batch)
        if len(passes) > after:
            began.set()
        time.sleep(0.002)

    llm = make(before=slowly)

    async def main():
        task = asyncio.create_task(llm.agenerate("x"))
        while not began.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return len(passes)

    at_cancel = asyncio.run(main())
    assert idle_soon(llm)
    assert len(passes) <= at_cancel + 1
    assert len(passes) < 30


def test_a_queued_request_is_cancelled_with_its_task(make):
    gate = threading.Event()
    llm = make(before=lambda batch: gate.wait(10))

    async def main():
        tasks = [asyncio.create_task(llm.agenerate("x", max_tokens=2)) for _ in range(20)]
        await asyncio.sleep(0.05)
        for task in tasks[10:]:
            task.cancel()
        gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(main())
    assert [r.completion_tokens for r in results[:10]] == [2] * 10
    assert all(isinstance(r, asyncio.CancelledError) for r in results[10:])


def test_leaving_the_loop_cancels_the_rest(make):
    passes = []
    llm = make(before=lambda batch: passes.append(time.sleep(0.002)))

    async def leave():
        async for part in llm.astream("x"):
            if part.token is not None:
                break
        return await llm.agenerate("y", max_tokens=1)

    async def leave_kept():
        async with contextlib.aclosing(llm.astream("x")) as parts:
            async for _ in parts:
                break
        return await llm.agenerate("y", max_tokens=1)

    for coroutine in (leave, leave_kept):
        passes.clear()
        asyncio.run(coroutine())
        assert idle_soon(llm)
        assert len(passes) < 20


def test_a_timeout_ends_a_call(make):
    llm = make(before=lambda batch: llm._engine._core.runner.cancelled.wait(30))

    async def main():
        began = time.perf_counter()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(llm.agenerate("x"), 0.05)
        llm._engine._core.runner.before = None
        await llm.agenerate("x", max_tokens=2)
        return time.perf_counter() - began

    assert asyncio.run(main()) < 2


def test_loops_of_several_threads_and_plain_threads(make):
    llm = make()
    together = {}

    def ask(i):
        return {"prompt": "q" * (i + 1), "max_tokens": 12, "seed": i}

    def plain(i):
        together[i] = llm.generate(**ask(i)).text

    def on_a_loop(i):
        together[i] = asyncio.run(llm.agenerate(**ask(i))).text

    alone = {i: llm.generate(**ask(i)).text for i in range(8)}
    threads = [threading.Thread(target=[plain, on_a_loop][i % 2], args=[i]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert together == alone


def test_no_thread_is_made_for_a_call(make):
    llm = make()
    llm.generate("x", max_tokens=1)
    before = set(threading.enumerate())

    async def main():
        during = set()
        async for _ in llm.astream("x", max_tokens=5):
            during |= set(threading.enumerate())
        return during

    assert asyncio.run(main()) <= before


def test_the_loop_goes_on_meanwhile(make):
    llm = make(before=lambda batch: time.sleep(0.1))

    async def main():
        task = asyncio.create_task(llm.agenerate("x", max_tokens=4))
        turns = 0
        while not task.done():
            await asyncio.sleep(0.001)
            turns += 1
        return turns

    assert asyncio.run(main()) > 40


def test_closing_the_model_raises_in_the_tasks_that_wait(make):
    llm = make(before=lambda batch: time.sleep(0.01))

    async def main():
        tasks = [asyncio.create_task(llm.agenerate("x")) for _ in range(12)]
        await asyncio.sleep(0.05)
        llm.close()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(main())
    assert [type(result) for result in results] == [CancelledError] * 12
    assert all("closed" in str(result) for result in results)


def test_a_loop_that_is_closed_in_the_middle_does_not_hurt_the_engine(make):
    llm = make(before=lambda batch: time.sleep(0.005))
    loop = asyncio.new_event_loop()
    parts = llm.astream("x")
    loop.run_until_complete(anext(parts))
    loop.close()
    assert idle_soon(llm)
    with contextlib.suppress(StopIteration):
        parts.aclose().send(None)  # it waits for nothing
    assert llm.generate([BOS], max_tokens=3).completion_tokens == 3


def test_errors_come_out_of_the_await(make):
    def failing(batch):
        raise ValueError("broken")

    llm = make(before=failing)
    with pytest.raises(Exception, match="broken"):
        asyncio.run(llm.agenerate("x"))


@pytest.mark.parametrize("prompt", [1, 100])
def test_ctrl_c_ends_a_loop_within_a_second(prompt):
    out, err, status = run_script(
        f"""
        import asyncio, time
        both = scripted_llama(noise, before=lambda batch: both.runner.cancelled.wait(30))
        async def main():
            print("ready", flush=True)
            await asyncio.gather(*(both.llama.agenerate([1] * {prompt}) for _ in range(3)))
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            began = time.perf_counter()
            both.runner.before = None
            print(both.llama.generate([1], max_tokens=3).completion_tokens)
            assert time.perf_counter() - began < 1
        """,
        interrupt_after="ready",
    )
    assert (out, err, status) == ("3\n", "", 0)
