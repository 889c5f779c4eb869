"""What both sides of peers_cpu.py have in common: a process that answers on a pipe.

The first line on stdout says what it runs on; after that each line on stdin asks for one sample and
each line on stdout gives its nanoseconds, and what share of the threads' time the process was
running. All lines are JSON. Only the standard library, since the other side's interpreter has
nothing else in common with ours.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable

Sample = Callable[[int, int, int], int]  # n_prompt, n_gen, n_depth -> nanoseconds


def arguments() -> argparse.Namespace:
    """MODEL N_CTX THREADS SEQUENCES; n_ctx is what one sequence holds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("n_ctx", type=int)
    parser.add_argument("threads", type=int)
    parser.add_argument("sequences", type=int)
    return parser.parse_args()


def serve(about: dict[str, str], threads: int, sample: Sample) -> None:
    """Answer until stdin ends."""
    print(json.dumps(about), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        wall, ran = time.perf_counter(), time.process_time()
        ns = sample(asked["n_prompt"], asked["n_gen"], asked["n_depth"])
        wall, ran = time.perf_counter() - wall, time.process_time() - ran
        print(json.dumps({"ns": ns, "share": ran / wall / threads}), flush=True)
