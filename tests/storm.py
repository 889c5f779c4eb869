"""Threads and tasks that ask one model at once, take back some of it, and check every text."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Ask = Callable[[int], dict[str, Any]]  # question -> arguments of generate


@dataclass(slots=True)
class Weather:
    """What happened: counts by kind, texts that were wrong, resident bytes over time."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    @property
    def growth(self) -> int:
        """Bytes by which the memory grew after a third of the time."""
        warm = self.resident[len(self.resident) // 3]
        return self.resident[-1] - warm


def storm(llm, ask: Ask, n_questions: int, seconds: float, threads=8, tasks=100) -> Weather:
    """Ask for so long; each question's text must be what it was alone, or, where the reply was
    left, a beginning of that."""
    alone = [llm.generate(**ask(i)).text for i in range(n_questions)]
    weather = Weather()
    end = time.monotonic() + seconds

    def check(kind: str, question: int, text: str, whole: bool = True) -> None:
        weather.counts[kind] += 1
        expected = alone[question]
        if text != expected if whole else not expected.startswith(text):
            weather.faults.append(f"{kind} {question}: {text!r}, alone {expected!r}")

    def guarded(work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            weather.faults.append(f"{work.__name__} {number}: {error!r}")

    def thread(number: int) -> None:
        chance = random.Random(number)
        while time.monotonic() < end:
            question = chance.randrange(n_questions)
            if chance.random() < 0.6:
                check("thread", question, llm.generate(**ask(question)).text)
                continue
            with contextlib.closing(llm.stream(**ask(question))) as parts:
                n = chance.randrange(1, 8)
                text = "".join(part.text for part, _ in zip(parts, range(n), strict=False))
            check("thread left", question, text, whole=False)

    async def task(number: int) -> None:
        chance = random.Random(1000 + number)
        while time.monotonic() < end:
            question = chance.randrange(n_questions)
            kind = chance.random()
            if kind < 0.4:
                check("task", question, (await llm.agenerate(**ask(question))).text)
            elif kind < 0.7:
                asked = asyncio.create_task(llm.agenerate(**ask(question)))
                await asyncio.sleep(chance.random() * 0.3)
                asked.cancel()
                try:
                    check("task late", question, (await asked).text)
                except asyncio.CancelledError:
                    weather.counts["task cancelled"] += 1
            else:
                n, text = chance.randrange(1, 8), ""
                async for part in llm.astream(**ask(question)):
                    text += part.text
                    n -= 1
                    if n == 0:
                        break
                check("task left", question, text, whole=False)

    def loop(number: int) -> None:
        async def all_tasks() -> None:
            await asyncio.gather(*(task(number + i) for i in range(tasks // 2)))

        asyncio.run(all_tasks())

    workers = [threading.Thread(target=guarded, args=[thread, i]) for i in range(threads)]
    workers += [
        threading.Thread(target=guarded, args=[loop, at]) for at in (0, tasks // 2)
    ]  # half of the tasks on each of two event loops
    for worker in workers:
        worker.start()
    while time.monotonic() < end:
        time.sleep(seconds / 30)
        gc.collect()
        weather.resident.append(resident_bytes())
    for number, worker in enumerate(workers):
        worker.join(60)
        if worker.is_alive():
            weather.faults.append(f"worker {number} waits for ever")
    gc.collect()
    weather.resident.append(resident_bytes())
    return weather


def resident_bytes() -> int:
    """What this process holds in memory; 0 where Linux does not say."""
    with contextlib.suppress(OSError):
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * 4096
    return 0
