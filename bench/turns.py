"""A conversation: the time to the first token of each turn, with prefix reuse and without.

    python bench/turns.py [--model MODEL] [--device cpu] [-t THREADS] [--turns 20] [-n 24]

Both ways say the same; whether the texts are equal stands at the end.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import llama3jit
from llama3jit.errors import Llama3JitError

if TYPE_CHECKING:
    from llama3jit.results import Result

TOPICS = ("the sea", "old bridges", "bread", "winter", "trains", "maps", "owls", "tea")


def talk(given: argparse.Namespace, *, reuse: bool) -> list[Result]:
    """The replies of a conversation."""
    with (
        llama3jit.load(
            given.model, given.device, n_ctx=given.n_ctx, threads=given.threads, prefix_reuse=reuse
        ) as llm,
        llm.session("You answer in one short sentence.", temperature=0) as session,
    ):
        llm.generate("The first pass is slower.", max_tokens=2)
        asked = (
            f"{turn + 1}. Tell me something about {TOPICS[turn % len(TOPICS)]}."
            for turn in range(given.turns)
        )
        return [session.say(text, max_tokens=given.n_tokens) for text in asked]


def milliseconds(result: Result) -> float:
    return 1e3 * (result.stats.ttft_s or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the turns of a conversation.")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name or a GGUF file")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", "-t", type=int)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("-n", "--n-tokens", type=int, default=24)
    parser.add_argument("--n-ctx", type=int, default=2048)
    given = parser.parse_args()
    try:
        with_reuse, without = (talk(given, reuse=reuse) for reuse in (True, False))
    except Llama3JitError as error:
        raise SystemExit(str(error)) from None
    print("| turn | prompt tokens | cached | first token, ms | without reuse, ms |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for turn, (a, b) in enumerate(zip(with_reuse, without, strict=True), 1):
        times = f"{milliseconds(a):.1f} | {milliseconds(b):.1f}"
        print(f"| {turn} | {a.prompt_tokens} | {a.stats.cached_tokens} | {times} |")
    same = [a.tokens for a in with_reuse] == [b.tokens for b in without]
    print(f"the texts are {'equal' if same else 'NOT equal'}")


if __name__ == "__main__":
    main()
