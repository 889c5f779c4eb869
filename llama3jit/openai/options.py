"""The arguments of `Llama(model_path, ...)`: llama-cpp-python's as those of `load`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from llama3jit.arguments import OnOverflow, Progress
from llama3jit.checks import check_whole, did_you_mean
from llama3jit.errors import InvalidArgumentError
from llama3jit.openai.arguments import RANDOM_SEEDS
from llama3jit.openai.chat_formats import template_of
from llama3jit.openai.defaults import Defaults, Pooling


class Options(TypedDict, total=False):
    """llama-cpp-python's arguments, with a meaning; without effect; that have one value here; and
    those of `load`."""

    n_gpu_layers: int
    main_gpu: int
    n_ctx: int
    n_threads: int | None
    seed: int
    type_k: int | None
    type_v: int | None
    pooling_type: int
    chat_format: str | None
    last_n_tokens_size: int
    spm_infill: bool

    use_mmap: bool
    use_mlock: bool
    n_batch: int
    n_ubatch: int
    n_threads_batch: int | None
    logits_all: bool
    embedding: bool
    offload_kqv: bool
    flash_attn: bool
    op_offload: bool | None
    swa_full: bool | None
    no_perf: bool
    numa: bool | int
    verbose: bool

    split_mode: int
    tensor_split: Sequence[float] | None
    vocab_only: bool
    kv_overrides: Mapping[str, Any] | None
    rope_scaling_type: int | None
    attention_type: int
    rope_freq_base: float
    rope_freq_scale: float
    yarn_ext_factor: float
    yarn_attn_factor: float
    yarn_beta_fast: float
    yarn_beta_slow: float
    yarn_orig_ctx: int
    lora_base: str | None
    lora_scale: float
    lora_path: str | None
    chat_handler: Any
    draft_model: Any
    tokenizer: Any

    device: str
    threads: int | None
    kv_dtype: str
    precision: str
    chat_template: str | None
    max_sequences: int
    on_overflow: OnOverflow
    prefix_reuse: bool
    progress: Progress | None


DEFAULT_N_CTX = 512  # llama-cpp-python's
OURS = (
    "device",
    "threads",
    "kv_dtype",
    "precision",
    "chat_template",
    "max_sequences",
    "on_overflow",
    "prefix_reuse",
    "progress",
)
# None of these changes what is computed: name -> what there is instead.
WITHOUT_EFFECT = {
    "use_mmap": "files are always mapped",
    "use_mlock": "weights are not locked in memory",
    "n_batch": "prompts run in chunks of a size that suits the device",
    "n_ubatch": "see n_batch",
    "n_threads_batch": "one pool of n_threads does both",
    "logits_all": "logprobs are there without it",
    "embedding": "embeddings are there without it",
    "offload_kqv": "the cache is where the model is",
    "flash_attn": "attention is always computed block by block",
    "op_offload": "a model is on one device",
    "swa_full": "the cache holds the whole context",
    "no_perf": "times are always taken",
    "numa": "memory goes where the system puts it",
    "verbose": "nothing is printed",
}
_OF_THE_FILE = "rotary embeddings are scaled as the file says"
_LORA = "adapters are not built: merge the adapter into the model, and convert that"
# name -> the values that say no more than what is done anyway, and why others are refused.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "split_mode": ((0, 1), "a model is on one device"),
    "tensor_split": ((None,), "a model is on one device"),
    "vocab_only": ((False,), "a model is opened whole"),
    "kv_overrides": ((None, {}), "a file is taken as it is: change its metadata"),
    "rope_scaling_type": ((None, -1), _OF_THE_FILE),
    "attention_type": ((-1, 0), "attention is causal"),
    "rope_freq_base": ((0,), _OF_THE_FILE),
    "rope_freq_scale": ((0,), _OF_THE_FILE),
    "yarn_ext_factor": ((-1,), _OF_THE_FILE),
    "yarn_attn_factor": ((1, -1), _OF_THE_FILE),
    "yarn_beta_fast": ((32, -1), _OF_THE_FILE),
    "yarn_beta_slow": ((1, -1), _OF_THE_FILE),
    "yarn_orig_ctx": ((0,), _OF_THE_FILE),
    "lora_base": ((None,), _LORA),
    "lora_scale": ((1, 0), _LORA),
    "lora_path": ((None,), _LORA),
    "chat_handler": ((None,), "images and handlers are not built: give a chat_template"),
    "draft_model": ((None,), "speculative decoding is not built"),
    "tokenizer": ((None,), "the file's own vocabulary is used"),
}
# ggml's numbers of types, and llama.cpp's of poolings.
KV_DTYPES = {None: "f16", 0: "f32", 1: "f16", 2: "q4_0", 8: "q8_0"}
POOLINGS: dict[int, Pooling] = {-1: "none", 0: "none", 1: "mean", 2: "first", 3: "last"}


def load_options(
    model_path: str | Path, options: Mapping[str, Any]
) -> tuple[dict[str, Any], Defaults]:
    """The arguments of `load`, and what the OpenAI-shaped methods go by. Raises
    InvalidArgumentError, by name, for what has no meaning here and would change the results."""
    _check_names(options)
    for name, (values, reason) in REFUSED.items():
        value = options.get(name, values[0])
        if not any(value is same or value == same for same in values):
            raise InvalidArgumentError(f"{name} is {value!r:.60}, and {reason}; leave it out")
    ours = {name: options[name] for name in OURS if name in options}
    n_ctx = options.get("n_ctx", DEFAULT_N_CTX)
    ours["n_ctx"] = None if n_ctx == 0 else n_ctx
    _put(ours, options, "threads", "n_threads", options.get("n_threads"))
    _put(ours, options, "device", "n_gpu_layers", _device(model_path, options))
    _put(ours, options, "kv_dtype", "type_k", _kv_dtype(options))
    if options.get("chat_format") is not None:
        _put(ours, options, "chat_template", "chat_format", template_of(options["chat_format"]))
    pooling = options.get("pooling_type", -1)
    if pooling not in POOLINGS:
        raise InvalidArgumentError(
            f"pooling_type is {pooling!r:.60}: expected -1 or 0 (each token's vector), 1 (mean), "
            f"2 (the first token's) or 3 (the last's)"
        )
    seed = options.get("seed")
    return ours, Defaults(
        model=str(model_path),
        seed=None if seed in RANDOM_SEEDS else seed,
        repeat_last_n=options.get("last_n_tokens_size", 64),
        pooling=POOLINGS[pooling],
        spm_infill=bool(options.get("spm_infill", False)),
    )


def check_device(device: str, options: Mapping[str, Any]) -> None:
    """Warn if layers were to go to a GPU, and none is used."""
    if options.get("n_gpu_layers", 0) and "device" not in options and device == "cpu":
        warnings.warn(
            f"n_gpu_layers is {options['n_gpu_layers']}, and no GPU can be used: the model runs on "
            f"the CPU; `llama3jit doctor` says why",
            stacklevel=3,
        )


def _check_names(options: Mapping[str, Any]) -> None:
    known = list(Options.__annotations__)
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InvalidArgumentError(f"unknown argument {name!r} of Llama{hint}")


def _put(
    ours: dict[str, Any], options: Mapping[str, Any], name: str, theirs: str, value: Any
) -> None:
    """Set an argument of `load` that llama-cpp-python has by another name, unless it was given by
    its own; both together are refused."""
    if name not in options:
        ours[name] = value
    elif theirs in options:
        raise InvalidArgumentError(f"{theirs} and {name} are both given: they mean the same")


def _device(model_path: str | Path, options: Mapping[str, Any]) -> str:
    layers, gpu = options.get("n_gpu_layers", 0), options.get("main_gpu", 0)
    for name, value, low in (("n_gpu_layers", layers, -1), ("main_gpu", gpu, 0)):
        check_whole(name, value, low)
    if layers == 0:
        return "cpu"
    if layers > 0 and layers < (held := _layers_of(model_path)):
        raise InvalidArgumentError(
            f"n_gpu_layers is {layers} of {held}, and a model is on one device: give -1 for the "
            f"GPU, or 0 for the CPU"
        )
    return f"cuda:{gpu}" if gpu else "auto"


def _layers_of(model_path: str | Path) -> int:
    from llama3jit.files.gguf import open_gguf
    from llama3jit.files.store import resolve

    gguf = open_gguf(resolve(model_path))
    try:
        architecture = gguf.metadata.get("general.architecture")
        layers = gguf.metadata.get(f"{architecture}.block_count")
        return layers if isinstance(layers, int) else 0
    finally:
        gguf.close()


def _kv_dtype(options: Mapping[str, Any]) -> str:
    k, v = options.get("type_k"), options.get("type_v")
    for name, value in (("type_k", k), ("type_v", v)):
        if value not in KV_DTYPES:
            raise InvalidArgumentError(
                f"{name} is {value!r:.60}: expected 0 (F32), 1 (F16), 2 (Q4_0) or 8 (Q8_0)"
            )
    if KV_DTYPES[k] != KV_DTYPES[v]:
        raise InvalidArgumentError(
            f"type_k is {k} and type_v is {v}: keys and values are kept alike; give both the same"
        )
    return KV_DTYPES[k]
