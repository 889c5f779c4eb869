"""Decode throughput of many sequences at once, through the engine.

    python bench/throughput.py [--model MODEL] [--device cpu] [-t THREADS] [-n 96] [--turns 3]

Each of 1, 2, 4, 8, 16 sequences has a prompt of its own and generates n tokens. What is counted
begins when the last of them has its first token, and ends when the first of them is done: so all of
them decode, and nothing else does. The numbers of sequences take turns; medians over the turns.
"""

from __future__ import annotations

import argparse
import statistics
import threading
from typing import TYPE_CHECKING

import llama3jit
from llama3jit.engine.sequence import Request, SamplingParams
from llama3jit.errors import Llama3JitError

if TYPE_CHECKING:
    from llama3jit.engine.engine import Engine

SEQUENCES = (1, 2, 4, 8, 16)
PROMPT = 32  # tokens


def throughput(engine: Engine, count: int, n_tokens: int) -> float:
    """Tokens per second of so many sequences together."""
    params = SamplingParams(max_tokens=n_tokens, temperature=0)
    vocab = engine.limits.vocab_size
    prompts = [[(31 * i + 7 * at + 1) % vocab for at in range(PROMPT)] for i in range(count)]
    times: list[list[float]] = [[] for _ in range(count)]

    def collect(i: int) -> None:
        times[i] = [event.time for event in handles[i]]

    handles = [engine.submit(Request(prompt, params)) for prompt in prompts]
    threads = [threading.Thread(target=collect, args=[i]) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begin = max(each[0] for each in times)
    end = min(each[-1] for each in times)
    counted = sum(sum(begin < at <= end for at in each) for each in times)
    return counted / (end - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure decode throughput of many sequences.")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name or a GGUF file")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", "-t", type=int)
    parser.add_argument("-n", "--n-tokens", type=int, default=96)
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    try:
        with llama3jit.load(
            given.model,
            given.device,
            n_ctx=max(SEQUENCES) * (PROMPT + given.n_tokens),  # which all of them share
            threads=given.threads,
            max_sequences=max(SEQUENCES),
            prefix_reuse=False,
        ) as llm:
            rates: dict[int, list[float]] = {count: [] for count in SEQUENCES}
            for turn in range(given.turns + 1):
                for count in SEQUENCES:
                    rate = throughput(llm._engine, count, given.n_tokens)
                    if turn:  # the first is the warm-up
                        rates[count].append(rate)
    except Llama3JitError as error:
        raise SystemExit(str(error)) from None
    print("| sequences | tok/s in all | tok/s each | to one |\n| ---: | ---: | ---: | ---: |")
    for count, found in rates.items():
        rate = statistics.median(found)
        to_one = statistics.median(a / b for a, b in zip(found, rates[1], strict=True))
        print(f"| {count} | {rate:.1f} | {rate / count:.1f} | {to_one:.2f} |")


if __name__ == "__main__":
    main()
