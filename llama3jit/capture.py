"""What a model computes on its way, by name: `Llama.forward`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from llama3jit.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llama3jit.api import Llama
    from llama3jit.arguments import Prompt
    from llama3jit.devices.capture import Capture
    from llama3jit.engine.engine import Engine, Handle

    Pieces = list[tuple[int, NDArray[np.float32]]]


def captured(
    llm: Llama, ids: Prompt, patterns: str | Sequence[str]
) -> dict[str, NDArray[np.float32]]:
    """See Llama.forward."""
    from llama3jit.devices.capture import Capture

    names = matching(patterns, llm._engine.capture_names())
    tokens = llm._prompt_ids(ids)
    found: dict[str, Pieces] = {name: [] for name in names}
    capture = Capture(names, lambda name, first, values: found[name].append((first, values)))
    wait(show(llm._engine, tokens, capture))
    return {
        name: _squared(pieces, len(tokens)) if name.endswith(".attn_probs") else _joined(pieces)
        for name, pieces in found.items()
    }


def show(engine: Engine, tokens: list[int], capture: Capture) -> Handle:
    """Ask for a pass over tokens that shows what is wanted of it."""
    from llama3jit.engine.sequence import Request

    return engine.submit(Request(tokens, visit=lambda first, rows: None, capture=capture))


def wait(handle: Handle) -> None:
    """Wait for the end of what `show` asked for."""
    try:
        for _ in handle:
            pass
    finally:
        handle.cancel()


def matching(patterns: str | Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """The names that any of the patterns matches. Raises InvalidArgumentError for one that matches
    none, with the names there are."""
    many = [patterns] if isinstance(patterns, str) else list(patterns)
    for pattern in many:
        if not isinstance(pattern, str) or not any(fnmatchcase(name, pattern) for name in names):
            kinds = dict.fromkeys(re.sub(r"^blk\.\d+", "blk.N", name) for name in names)
            layers = sum(name.endswith(".resid") for name in names)
            raise InvalidArgumentError(
                f"capture has {pattern!r:.60}, which matches nothing; there are, with N from 0 to "
                f"{layers - 1}: {', '.join(kinds)}"
            )
    return tuple(name for name in names if any(fnmatchcase(name, one) for one in many))


def _joined(pieces: Pieces) -> NDArray[np.float32]:
    import numpy as np

    return np.concatenate([values for _, values in pieces])


def _squared(pieces: Pieces, n_tokens: int) -> NDArray[np.float32]:
    """[heads, T, T] of pieces [heads, tokens, tokens seen]; 0 where nothing is seen."""
    import numpy as np

    out = np.zeros((len(pieces[0][1]), n_tokens, n_tokens), np.float32)
    for first, values in pieces:
        out[:, first : first + values.shape[1], : values.shape[2]] = values
    return out
