"""llama3jit: Llama-family GGUF models on CPUs and NVIDIA GPUs, every op a Python function.

    import llama3jit

    with llama3jit.load("smollm2-135m-instruct") as llm:
        print(llm.chat([{"role": "user", "content": "Hello!"}]).text)

Importing this package imports neither numpy nor numba: names are looked up when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama3jit.version import __version__

if TYPE_CHECKING:
    from llama3jit.api import Llama, load
    from llama3jit.errors import Llama3JitError
    from llama3jit.openai.grammar import LlamaGrammar
    from llama3jit.session import Session

__all__ = ["Llama", "Llama3JitError", "LlamaGrammar", "Session", "__version__", "load"]

_HOMES = {
    "Llama": "llama3jit.api",
    "load": "llama3jit.api",
    "Llama3JitError": "llama3jit.errors",
    "LlamaGrammar": "llama3jit.openai.grammar",
    "Session": "llama3jit.session",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'llama3jit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
