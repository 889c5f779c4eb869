"""From the path of a model file to an engine and a tokenizer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from llama3jit.background import Background
from llama3jit.errors import ModelFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from llama3jit.engine.engine import Engine
    from llama3jit.text.tokenizer import Tokenizer

IDLE_S = 0.2  # after loading; a program that has a prompt ready has begun with it by then


@dataclass(frozen=True, slots=True)
class Opened:
    """What a model file gives. `fingerprint` says which model it is; it reads a little of the file,
    which is open as long as the engine is."""

    engine: Engine
    tokenizer: Tokenizer
    metadata: Mapping[str, Any]
    fingerprint: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Identity:
    """What a cache's contents depend on beside the tokens. `fingerprint` gives the model's."""

    fingerprint: Callable[[], str]
    kv_dtype: str
    precision: str


def open_model(path: Path, *, prefix_reuse: bool = True, **options: Any) -> Opened:
    """Load a model with the options of `open_runner` and of Engine; raises as the former does."""
    from llama3jit.devices.choose import open_runner
    from llama3jit.files.fingerprint import fingerprint
    from llama3jit.files.gguf import open_gguf
    from llama3jit.model.config import read_config
    from llama3jit.text.tokenizer import load_tokenizer

    gguf = open_gguf(path)
    # It takes long and needs none of the weights; before these are packed, two threads would only
    # wait for each other's turn at the interpreter.
    tokenizer: Background[Tokenizer] = Background(lambda: load_tokenizer(gguf.metadata))
    runner = None
    try:
        config = read_config(gguf)
        runner = open_runner(gguf, config, meanwhile=tokenizer.start, **options)
        ready = tokenizer.result()
        _check_vocabulary(ready.vocab_size, config.vocab_size)
    except BaseException:
        if runner is not None:
            runner.close()
        tokenizer.join()
        gguf.close()
        raise
    from llama3jit.engine.engine import Engine

    engine = Engine(runner, on_close=gguf.close, prefix_reuse=prefix_reuse)
    return Opened(engine, ready, gguf.metadata, lambda: fingerprint(gguf))


def import_sandbox() -> None:
    """Import jinja2, which the first chat would wait for; later than a prompt that is there now."""
    time.sleep(IDLE_S)
    import_module("llama3jit.text.sandbox")


def _check_vocabulary(tokens: int, embeddings: int) -> None:
    if tokens != embeddings:
        raise ModelFormatError(
            f"tokenizer.ggml.tokens has {tokens} tokens, and token_embd.weight has rows for "
            f"{embeddings}: the vocabulary and the weights are not of one model; convert it again"
        )
