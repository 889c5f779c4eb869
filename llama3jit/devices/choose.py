"""The choice of a device, and what must hold before a model is loaded on it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from llama3jit.checks import check_whole
from llama3jit.devices import Limits, Runner
from llama3jit.errors import DeviceError, InvalidArgumentError, MemoryLimitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama3jit.compile.build import Progress
    from llama3jit.model.config import ModelConfig

DEVICES = ("auto", "cpu", "cuda", "reference")
KV_DTYPES = ("f16", "f32", "q8_0", "q4_0")
PRECISIONS = ("fast", "exact")

DEFAULT_N_CTX = 8192  # or what the model was made for, if that is less
MAX_N_CTX = 2**31 - 65  # positions are int32
MAX_TOKENS, MAX_TOKENS_GPU = 512, 1024  # of a batch
LOGITS_BYTES = 64 * 2**20  # for scoring, which wants many rows; untouched, they take no memory
# What Python, the libraries and the tokenizer take beside the model.
OVERHEAD_BYTES = 120 * 2**20


def open_runner(
    gguf: Any,
    config: ModelConfig,
    *,
    device: str = "auto",
    n_ctx: int | None = None,
    threads: int | None = None,
    kv_dtype: str = "f16",
    precision: str = "fast",
    max_sequences: int = 8,
    max_tokens: int | None = None,
    progress: Progress | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Runner:
    """Load an open model file on a device.

    `n_ctx` is the tokens of one sequence; all sequences share a cache of that many tokens. By
    default it is the model's own context, at most 8192. `max_sequences` and `max_tokens` bound one
    batch; by default `max_tokens` is 512, on a GPU 1024. `kv_dtype`, one of KV_DTYPES, is the type
    of the cache; q8_0 and q4_0 need a head_dim that is a multiple of 32. `precision` "exact" keeps
    activations in float32; "fast" rounds them to int8 or halves for quantised weights. `meanwhile`
    is called once, when the interpreter is about to be idle.

    Raises InvalidArgumentError for a choice that there is not, DeviceError for a device that is not
    there, MemoryLimitError before anything is read if the model will not fit, and what `build_plan`
    raises.
    """
    from llama3jit.model.build import build_plan

    one_of("device", kind_of(device), DEVICES, device)
    one_of("kv_dtype", kv_dtype, KV_DTYPES)
    one_of("precision", precision, PRECISIONS)
    if threads is not None:
        threads = check_whole("threads", threads)
    card = find_device(device)
    if max_tokens is None:
        max_tokens = MAX_TOKENS if card is None else MAX_TOKENS_GPU
    limits = make_limits(config, n_ctx, max_sequences, max_tokens)
    plan = build_plan(config, gguf.tensors, kv_dtype)
    if device == "reference":
        from llama3jit.devices.interpreter import Interpreter, memory_of

        check_memory(memory_of(plan, limits), limits)
        if meanwhile is not None:
            meanwhile()
        return Interpreter(gguf, config, plan, limits, "reference")
    if card is not None:
        from llama3jit.devices.cuda.driver import Gpu
        from llama3jit.devices.cuda.runner import open_on_gpu

        if meanwhile is not None:  # opening the device takes long, and leaves the interpreter alone
            meanwhile()
        return open_on_gpu(
            gguf,
            config,
            plan,
            limits,
            Gpu(card),
            exact=precision == "exact",
            progress=progress,
        )
    from llama3jit.devices.cpu.lower import lower
    from llama3jit.devices.cpu.runner import CpuRunner, memory_needed
    from llama3jit.devices.cpu.threads import thread_count

    n_threads = thread_count(threads)
    lowered = lower(plan, precision)
    check_memory(memory_needed(lowered, limits), limits)
    return CpuRunner(
        gguf, config, lowered, limits, threads=n_threads, progress=progress, meanwhile=meanwhile
    )


def kind_of(device: str) -> str:
    """ "cuda" of "cuda:1"; anything else as it is."""
    if isinstance(device, str) and device.startswith("cuda:"):
        return "cuda"
    return device


def find_device(device: str) -> int | None:
    """The number of the GPU to use, None for the CPU.

    Raises DeviceError if a GPU was asked for and there is none that can be used; warns
    NoGpuWarning, with the reason, if "auto" passes over what looks like one.
    """
    if device in ("cpu", "reference"):
        return None
    from llama3jit.devices.cuda.probe import find_card, ordinal_of, worth_a_word

    if device != "auto":
        return find_card(ordinal_of(device)).ordinal
    if not worth_a_word():
        return None
    try:
        return find_card().ordinal
    except DeviceError as error:
        import warnings

        warnings.warn(f"running on the CPU: {error}", NoGpuWarning, stacklevel=2)
        return None


class NoGpuWarning(UserWarning):
    """The device "auto" is the CPU, though there seems to be a GPU."""


def one_of(name: str, value: str, choices: tuple[str, ...], given: object = None) -> None:
    """Raise InvalidArgumentError unless the value, which was `given` so, is one of the choices."""
    if value not in choices:
        found = value if given is None else given
        raise InvalidArgumentError(f"{name} is {found!r}; expected {', '.join(choices)}")


def make_limits(
    config: ModelConfig, n_ctx: int | None, max_sequences: int, max_tokens: int
) -> Limits:
    """The limits of a runner. Raises InvalidArgumentError for numbers out of range."""
    from llama3jit.model.plan import BLOCK_TOKENS

    if n_ctx is None:
        n_ctx = min(config.context_length, DEFAULT_N_CTX)
    # As Python's numbers: NumPy's wrap round.
    n_ctx = check_whole("n_ctx", n_ctx, 1, MAX_N_CTX)
    max_sequences = check_whole("max_sequences", max_sequences, 1, 4096)
    max_tokens = check_whole("max_tokens", max_tokens, 1, 65536)
    if max_sequences > max_tokens:
        raise InvalidArgumentError(
            f"max_sequences is {max_sequences}; a batch of max_tokens {max_tokens} cannot hold a "
            f"token of each"
        )
    return Limits(
        vocab_size=config.vocab_size,
        n_ctx=n_ctx,
        max_tokens=max_tokens,
        max_sequences=max_sequences,
        max_logits_rows=max(
            min(LOGITS_BYTES // (4 * config.vocab_size), max_tokens), max_sequences
        ),
        block_tokens=BLOCK_TOKENS,
        # Every sequence may leave its last block part empty.
        n_blocks=-(-n_ctx // BLOCK_TOKENS) + max_sequences - 1,
    )


def check_memory(needed: dict[str, int], limits: Limits) -> None:
    """Raise MemoryLimitError if there is less memory than a model needs."""
    total = sum(needed.values()) + OVERHEAD_BYTES
    available = available_memory()
    if total > available:
        parts = ", ".join(f"{use} {size / 2**20:.0f} MiB" for use, size in needed.items())
        raise MemoryLimitError(
            f"the model needs {total / 2**20:.0f} MiB of memory ({parts}, and "
            f"{OVERHEAD_BYTES / 2**20:.0f} MiB for the program) and {available / 2**20:.0f} MiB "
            f"are available; use a smaller n_ctx than {limits.n_ctx}, a kv_dtype of fewer bytes "
            f"(q8_0, q4_0) or a smaller quantisation"
        )


def available_memory() -> int:
    """Bytes that this process may still take: the machine's, or its control group's if less."""
    from llama3jit.devices.cgroup import memory_left

    machine = machine_memory_left()
    group = memory_left()
    return machine if group is None else min(machine, group)


def machine_memory_left(meminfo: str = "/proc/meminfo") -> int:
    """Bytes that the machine has for new programs. Where Linux says so there is no need of psutil,
    whose import takes 15 ms."""
    with suppress(OSError, ValueError), open(meminfo) as lines:
        for line in lines:
            name, _, size = line.partition(":")
            if name == "MemAvailable":
                return int(size.split()[0]) * 1024
    import psutil

    return int(psutil.virtual_memory().available)
