"""Several replies to one prompt, in one batch."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llama3jit.generation import Parts
    from llama3jit.results import Result, StreamPart


def interleaved(streams: Sequence[Parts]) -> Generator[tuple[int, StreamPart], None, None]:
    """The parts of several streams with the numbers of these, in turn. The second begins when the
    first has its first token, so that the cache has the prompt. Closing it closes all."""
    live = dict(enumerate(streams))
    try:
        while live:
            for index, parts in list(live.items()):
                part = next(parts, None)
                if part is None:
                    del live[index]
                else:
                    yield index, part
    finally:
        for parts in streams:
            parts.close()


def usage_of(prompt_tokens: int, results: Sequence[Result]) -> dict[str, int]:
    """The tokens of a prompt, counted once, and of all replies."""
    completion_tokens = sum(result.completion_tokens for result in results)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }
