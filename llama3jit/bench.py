"""Measures a device by llama-bench's method, and fills in llama-bench's fields.

Field names and method are those of llama.cpp's tools/llama-bench: random ids, no sampling and no
tokenising; prompts in batches; generation one token at a time with logits each; one untimed run
first; the mean and the sample deviation of the rates.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from llama3jit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama3jit.devices import Runner
    from llama3jit.files.gguf import GGUFFile
    from llama3jit.model.batch import Batch

# general.file_type (llama.h, enum llama_ftype) as llama.cpp writes it out.
_FILE_TYPES = {
    0: "all F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1",
    10: "Q2_K - Medium", 11: "Q3_K - Small", 12: "Q3_K - Medium", 13: "Q3_K - Large",
    14: "Q4_K - Small", 15: "Q4_K - Medium", 16: "Q5_K - Small", 17: "Q5_K - Medium",
    18: "Q6_K", 32: "BF16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Test:
    """`n_prompt` tokens at once or `n_gen` one by one, after `n_depth` that are not timed;
    `sampled`: by the engine, with the default sampling, from the request to the last token."""

    n_prompt: int
    n_gen: int
    n_depth: int = 0
    sampled: bool = False

    @property
    def name(self) -> str:
        """pp512, tg128, tg128 @ d256."""
        name = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
        name += f" @ d{self.n_depth}" if self.n_depth else ""
        return name + (" sampled" if self.sampled else "")

    @property
    def n_ctx(self) -> int:
        """Tokens that the context must hold."""
        return self.n_depth + self.n_prompt + self.n_gen + self.sampled


def plan_tests(prompts: list[int], gens: list[int], depths: list[int]) -> list[Test]:
    """Every prompt and generation length (0: none) at every depth, in llama-bench's order."""
    tests = []
    for depth in depths:
        tests += [Test(n, 0, depth) for n in prompts if n]
        tests += [Test(0, n, depth) for n in gens if n]
    return tests


def measure(runner: Runner, test: Test, repetitions: int, first_id: int | None) -> list[int]:
    """Nanoseconds of each repetition. first_id: the BOS that starts a sequence, if there is one."""
    ids = random.Random(0)
    tokens = [ids.randrange(runner.limits.vocab_size) for _ in range(test.n_ctx)]
    if first_id is not None:
        tokens[0] = first_id
    if test.sampled:
        prompt = tokens[: test.n_depth + 1]
        return [_generate(runner, prompt, test) for _ in range(repetitions + 1)][1:]
    deep = _prompt_batches(runner, tokens, 0, test.n_depth)
    if test.n_prompt:
        timed = _prompt_batches(runner, tokens, test.n_depth, test.n_prompt)
    else:
        timed = [
            batch
            for at in range(test.n_depth, test.n_depth + test.n_gen)
            for batch in _prompt_batches(runner, tokens, at, 1)
        ]
    # The cache of the first n_depth tokens stays as it is: what is timed writes after it.
    for batch in deep:
        runner.forward(batch)
    return _time(lambda: [runner.forward(batch) for batch in timed], repetitions)


def _time(work: Callable[[], Any], repetitions: int) -> list[int]:
    samples = []
    for i in range(repetitions + 1):
        began = time.perf_counter_ns()
        work()
        if i:  # the first is the warm-up
            samples.append(time.perf_counter_ns() - began)
    return samples


def _prompt_batches(runner: Runner, tokens: list[int], begin: int, count: int) -> list[Batch]:
    from llama3jit.model.batch import Piece, make_batch

    limits = runner.limits
    batches = []
    for at in range(begin, begin + count, limits.max_tokens):
        end = min(at + limits.max_tokens, begin + count)
        table = list(range(-(-end // limits.block_tokens)))
        batches.append(make_batch([Piece(tokens[at:end], at, table)]))
    return batches


def _generate(runner: Runner, prompt: list[int], test: Test) -> int:
    """Generate as users do, on an engine that leaves the runner open. The nanoseconds of n_gen
    tokens, at the pace from the first one on: the prompt's time is not theirs."""
    from llama3jit.engine.engine import Engine
    from llama3jit.engine.sequence import Request, SamplingParams

    engine = Engine(_KeptOpen(runner))
    try:
        handle = engine.submit(Request(prompt, SamplingParams(max_tokens=test.n_gen, seed=0)))
        times = [event.time for event in handle]
    finally:
        engine.close()
    if len(times) == 1:
        return round((times[0] - handle.admitted) * 1e9)
    return round((times[-1] - times[0]) / (len(times) - 1) * test.n_gen * 1e9)


class _KeptOpen:
    """A runner that an engine may close and that stays open."""

    def __init__(self, runner: Runner) -> None:
        self.limits = runner.limits
        self.device = runner.device
        self.memory = runner.memory
        self.n_leading = runner.n_leading
        self.begin = runner.begin
        self.forward = runner.forward
        self.leading = runner.leading
        self.cancel = runner.cancel
        self.copy_block = runner.copy_block
        self.read_block = runner.read_block
        self.write_block = runner.write_block

    def close(self) -> None:
        """Nothing: the bench closes it."""


def row_of(test: Test, samples: list[int], about: dict[str, Any]) -> dict[str, Any]:
    """llama-bench's fields; `about` has those of the model and the machine."""
    rates = [(test.n_prompt + test.n_gen) * 1e9 / ns for ns in samples]
    return {
        **about,
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        "test_time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": round(statistics.fmean(samples)),
        "stddev_ns": round(statistics.stdev(samples)) if len(samples) > 1 else 0,
        "avg_ts": statistics.fmean(rates),
        "stddev_ts": statistics.stdev(rates) if len(rates) > 1 else 0.0,
        "samples_ns": samples,
        "samples_ts": rates,
    }


def describe(gguf: GGUFFile, runner: Runner, *, threads: int, kv_dtype: str) -> dict[str, Any]:
    """The fields of llama-bench that do not depend on the test. Those of llama.cpp's own options
    hold what this package does in their place."""
    sizes = [(t.type_name, t.nbytes, _count(t.shape)) for t in gguf.tensors.values()]
    limits = runner.limits
    gpu = getattr(runner, "gpu", None)
    return {
        "build_commit": f"llama3jit-{__version__}",
        "build_number": 0,
        "cpu_info": cpu_name(),
        "gpu_info": "" if gpu is None else gpu.name,
        "backends": "CPU" if gpu is None else "CUDA",
        "model_filename": str(gguf.path),
        "model_type": model_type(gguf.metadata, sizes),
        "model_size": sum(nbytes for _, nbytes, _ in sizes),
        "model_n_params": sum(count for _, _, count in sizes),
        "n_batch": limits.max_tokens,
        "n_ubatch": limits.max_tokens,
        "n_threads": threads,
        "cpu_mask": "0x0",
        "cpu_strict": False,
        "poll": 50,
        "type_k": kv_dtype,
        "type_v": kv_dtype,
        "n_gpu_layers": 0 if gpu is None else 99,
        "n_cpu_moe": 0,
        "split_mode": "none",
        "main_gpu": 0,
        "no_kv_offload": False,
        "flash_attn": True,
        "devices": runner.device,
        "tensor_split": "0.00",
        "tensor_buft_overrides": "none",
        "load_mode": "mmap",
        "lazy_mode": False,
        "embeddings": False,
        "no_op_offload": 0,
        "no_host": False,
        "repack": True,
        "fit_target": 0,
        "fit_min_ctx": 0,
    }


def model_type(metadata: Any, sizes: list[tuple[str, int, int]]) -> str:
    """Architecture, size and quantisation: "llama 135M Q4_1". sizes: (type, bytes, values)."""
    n_params = sum(count for _, _, count in sizes)
    size = f"{n_params / 1e9:.0f}B" if n_params >= 0.95e9 else f"{n_params / 1e6:.0f}M"
    by_type: Counter[str] = Counter()
    for name, nbytes, _ in sizes:
        by_type[name] += nbytes
    file_type = metadata.get("general.file_type")
    known = _FILE_TYPES.get(file_type) if isinstance(file_type, int) else None
    quantisation = known or by_type.most_common(1)[0][0]
    return f"{metadata.get('general.architecture', '?')} {size} {quantisation}"


def cpu_name() -> str:
    """The processor, as the system calls it."""
    import platform

    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def parse_numbers(text: str) -> Iterator[int]:
    """The numbers of "512", "1,2,4", "1-4", "0-512+128" and "1-64*2". ValueError if it is none."""
    for part in text.split(","):
        first, dash, rest = part.partition("-")
        if not dash:
            yield int(first)
            continue
        last, sign, step = rest, "+", "1"
        for mark in "+*":
            if mark in rest:
                last, step = rest.split(mark)
                sign = mark
        value, end, by = int(first), int(last), int(step)
        if by < 1 or (sign == "*" and (by < 2 or value < 1)):
            raise ValueError(f"{part} never ends")
        while value <= end:
            yield value
            value = value + by if sign == "+" else value * by
