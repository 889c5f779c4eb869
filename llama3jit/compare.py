"""One model on several devices, side by side: how fast it is there, and how far apart what comes
out is.

Every device is loaded, generates greedily after the same prompt, and is closed again. Then all of
them read the same tokens, the prompt and what the first device made of it, and their logits are
compared with the first one's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from llama3jit.arguments import Progress
    from llama3jit.engine.engine import Engine

    Logits = NDArray[np.float32]

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Side:
    """One device. Times in seconds, speeds in tokens per second, None where there was nothing to
    measure; memory in MiB of what the model takes there."""

    device: str
    load_s: float
    first_token_s: float | None
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None
    memory_mib: float
    tokens: list[int]
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """What a device gives, measured by the first one's: over the rows of logits the mean and the
    largest Kullback-Leibler divergence in nats, over all logits the mean and the largest
    difference. `parted_at` is the first token at which the greedy texts part, None where they are
    the same."""

    device: str
    parted_at: int | None
    mean_kl: float
    max_kl: float
    mean_difference: float
    max_difference: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found; `differences` has a row for every device but the first."""

    model: str
    prompt_tokens: int
    sides: list[Side]
    differences: list[Difference]


def compare(
    path: str | Path,
    devices: list[str],
    prompt: str,
    *,
    max_tokens: int = 128,
    progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Run a model on each device in turn; `options` are those of open_runner.

    Raises what loading and generating raise.
    """
    from llama3jit.devices.choose import DEVICES, find_device, kind_of, one_of
    from llama3jit.files.gguf import open_gguf
    from llama3jit.files.store import resolve
    from llama3jit.text.tokenizer import load_tokenizer

    file = resolve(path)
    for device in devices:  # before the first one has cost time
        one_of("device", kind_of(device), DEVICES, device)
        find_device(device)
    with open_gguf(file) as gguf:
        tokenizer = load_tokenizer(gguf.metadata)
    ids = list(tokenizer.encode(prompt, add_eos=False))
    sides: list[Side] = []
    found: list[Logits] = []
    read: list[int] = []
    for device in devices:
        began = time.perf_counter()
        engine, memory = _open(file, device, progress, options)
        load_s = time.perf_counter() - began
        try:
            _generate(engine, ids, 1)  # the first pass of each kind is not like the others
            tokens, stats = _generate(engine, ids, max_tokens)
            read = read or [*ids, *tokens]
            found.append(_logits(engine, read))
        finally:
            engine.close()
        sides.append(
            Side(
                device=device,
                load_s=load_s,
                first_token_s=stats.ttft_s,
                prefill_tokens_per_s=stats.prefill_tokens_per_s,
                decode_tokens_per_s=stats.decode_tokens_per_s,
                memory_mib=sum(memory.values()) / MIB,
                tokens=tokens,
                text=tokenizer.decode(tokens),
            )
        )
    differences = [
        _difference(sides[0], side, found[0], logits)
        for side, logits in zip(sides[1:], found[1:], strict=True)
    ]
    return Comparison(str(file), len(ids), sides, differences)


def _open(
    file: Path, device: str, progress: Progress | None, options: dict[str, Any]
) -> tuple[Engine, dict[str, int]]:
    from llama3jit.devices.choose import open_runner
    from llama3jit.engine.engine import Engine
    from llama3jit.files.gguf import open_gguf
    from llama3jit.model.config import read_config

    gguf = open_gguf(file)
    try:
        runner = open_runner(
            gguf, read_config(gguf), device=device, progress=progress, max_sequences=1, **options
        )
    except BaseException:
        gguf.close()
        raise
    return Engine(runner, on_close=gguf.close, prefix_reuse=False), runner.memory


def _generate(engine: Engine, ids: list[int], max_tokens: int) -> tuple[list[int], Any]:
    """The likeliest tokens after a prompt, whether they end the text or not, and the times."""
    from llama3jit.engine.sequence import Request, SamplingParams
    from llama3jit.results import make_stats

    handle = engine.submit(Request(ids, SamplingParams(max_tokens=max_tokens, temperature=0)))
    try:
        events = list(handle)
    finally:
        handle.cancel()
    stats = make_stats(
        load_s=0.0,
        submitted=handle.submitted,
        admitted=handle.admitted,
        token_times=[event.time for event in events],
        prompt_tokens=len(ids),
    )
    return [event.token for event in events], stats


def _logits(engine: Engine, ids: list[int]) -> Logits:
    """Logits [T, vocab_size] after each token."""
    import numpy as np

    from llama3jit.engine.sequence import Request

    out = np.empty((len(ids), engine.limits.vocab_size), np.float32)

    def keep(first: int, rows: Logits) -> None:
        out[first : first + len(rows)] = rows

    handle = engine.submit(Request(ids, visit=keep))
    try:
        for _ in handle:
            pass
    finally:
        handle.cancel()
    return out


def _difference(first: Side, side: Side, truth: Logits, found: Logits) -> Difference:
    import numpy as np

    pairs = zip(first.tokens, side.tokens, strict=False)
    parted = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    divergences, gaps, largest = [], [], 0.0
    for expected, row in zip(truth, found, strict=True):
        divergences.append(_divergence(expected, row))
        gap = np.abs(expected.astype(np.float64) - row)
        gaps.append(float(gap.mean()))
        largest = max(largest, float(gap.max()))
    return Difference(
        device=side.device,
        parted_at=parted,
        mean_kl=float(np.mean(divergences)),
        max_kl=float(np.max(divergences)),
        mean_difference=float(np.mean(gaps)),
        max_difference=largest,
    )


def _divergence(expected: Logits, found: Logits) -> float:
    """KL divergence of one row of logits from another, in nats."""
    import numpy as np

    p, q = (_log_softmax(row.astype(np.float64)) for row in (expected, found))
    return max(0.0, float((np.exp(p) * (p - q)).sum()))


def _log_softmax(row: NDArray[np.float64]) -> NDArray[np.float64]:
    import numpy as np

    shifted: NDArray[np.float64] = row - row.max()
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return result
