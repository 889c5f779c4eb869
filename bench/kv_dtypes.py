"""Speed at depth with each type of the KV cache, in turn, so that a busy minute hits all of them.

    python bench/kv_dtypes.py [MODEL] [-d 1024,4096] [-p 512] [-n 32] [-r 5] [-t THREADS]

Prints medians of tokens per second, and the median of each round's ratio to f16.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import Any

from llama3jit import bench
from llama3jit.devices.choose import KV_DTYPES, open_runner
from llama3jit.errors import Llama3JitError
from llama3jit.files.gguf import open_gguf
from llama3jit.files.store import resolve
from llama3jit.model.config import read_config


def rounds(
    runners: dict[str, Any], test: bench.Test, repetitions: int, first_id: int | None
) -> dict[str, list[float]]:
    """Tokens per second of every type, a sample of each in every round."""
    n_tokens = test.n_prompt + test.n_gen
    rates: dict[str, list[float]] = {name: [] for name in runners}
    for i in range(repetitions):
        names = list(runners)
        for name in names if i % 2 == 0 else reversed(names):
            sample = bench.measure(runners[name], test, 1, first_id)[0]
            rates[name].append(n_tokens * 1e9 / sample)
    return rates


def as_text(rates: dict[str, dict[str, list[float]]]) -> str:
    """A table in markdown: a row a test, for each type its median and its ratio to f16."""
    names = list(next(iter(rates.values())))
    lines = ["| test | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for test, of_type in rates.items():
        cells = []
        for name in names:
            ratios = [a / b for a, b in zip(of_type[name], of_type[names[0]], strict=True)]
            cells.append(
                f"{statistics.median(of_type[name]):.1f} ({statistics.median(ratios):.2f})"
            )
        lines.append(f"| {test} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default="smollm2-135m-instruct")
    parser.add_argument("--depths", "-d", type=numbers, default=[1024, 4096])
    parser.add_argument("--n-prompt", "-p", type=numbers, default=[512])
    parser.add_argument("--n-gen", "-n", type=numbers, default=[32])
    parser.add_argument("--repetitions", "-r", type=int, default=5)
    parser.add_argument("--threads", "-t", type=int)
    parser.add_argument("--types", type=lambda text: text.split(","), default=["f16", *KV_DTYPES])
    given = parser.parse_args(arguments)
    tests = bench.plan_tests(given.n_prompt, given.n_gen, given.depths)
    try:
        with open_gguf(resolve(given.model)) as gguf:
            config = read_config(gguf)
            runners = {
                name: open_runner(
                    gguf,
                    config,
                    device="cpu",
                    n_ctx=max(test.n_ctx for test in tests),
                    threads=given.threads,
                    kv_dtype=name,
                    max_sequences=1,
                )
                for name in dict.fromkeys(given.types)
            }
            first_id = gguf.metadata.get("tokenizer.ggml.bos_token_id")
            rates = {
                test.name: rounds(runners, test, given.repetitions, first_id) for test in tests
            }
            for runner in runners.values():
                runner.close()
    except Llama3JitError as error:
        print(f"kv_dtypes: {error}", file=sys.stderr)
        return error.exit_code
    print(as_text(rates))
    return 0


if __name__ == "__main__":
    sys.exit(main())
