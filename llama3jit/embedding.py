"""Vectors of texts, from a model's last layer: `Llama.embed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llama3jit.arguments import as_ids
from llama3jit.capture import show, wait
from llama3jit.errors import InvalidArgumentError, NumericsError
from llama3jit.openai.defaults import Pooling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from llama3jit.api import Llama
    from llama3jit.arguments import Prompt

    Vectors = NDArray[np.float32]

POOLINGS = ("mean", "last", "first", "none")
AT_ONCE = 32  # texts in the engine's queue
_NAME = "result_norm"


@dataclass(frozen=True, slots=True)
class Embedding:
    """float32 [n_embd], or [tokens, n_embd] unpooled, and how many tokens the text has."""

    vector: Vectors
    tokens: int


def embed(
    llm: Llama, texts: Prompt | Sequence[Prompt], pooling: Pooling | None, normalize: bool
) -> Vectors | list[Vectors]:
    """See Llama.embed."""
    import numpy as np

    several, alone = split_texts(texts)
    pooling = llm._defaults.pooling if pooling is None else pooling
    vectors = [one.vector for one in embed_texts(llm, several, pooling)]
    if normalize:
        vectors = [_unit(vector) for vector in vectors]
    if alone:
        return vectors[0]
    return vectors if pooling == "none" else np.stack(vectors)


def split_texts(texts: Any) -> tuple[list[Prompt], bool]:
    """The texts, and whether there is one alone, given by itself: a str, or token ids."""
    if isinstance(texts, str):
        return [texts], True
    if isinstance(texts, bytes | Mapping | Set) or not hasattr(texts, "__len__"):
        raise InvalidArgumentError(
            f"texts is {type(texts).__name__}: expected a text, token ids, or a list of these"
        )
    if len(texts) == 0:
        raise InvalidArgumentError("texts is empty: expected one text or more")
    if all(isinstance(one, str) or hasattr(one, "__len__") for one in texts):
        return list(texts), False
    return [as_ids(texts)], True


def embed_texts(llm: Llama, texts: Sequence[Prompt], pooling: Pooling) -> list[Embedding]:
    """The vectors of texts, several in a batch. Wrong texts raise before work begins."""
    if pooling not in POOLINGS:
        raise InvalidArgumentError(
            f"pooling is {pooling!r:.60}: expected {', '.join(map(repr, POOLINGS))}"
        )
    from llama3jit.devices.capture import Capture
    from llama3jit.engine.sequence import Request

    engine = llm._engine
    engine.capture_names()  # UnsupportedError where there are none
    tokens = [_ids_of(llm, text) for text in texts]
    for ids in tokens:
        engine.check(Request(ids, visit=lambda first, rows: None))
    found: list[Embedding] = []
    for at in range(0, len(tokens), AT_ONCE):
        some = tokens[at : at + AT_ONCE]
        pools = [_Pool(pooling) for _ in some]
        handles = [
            show(engine, ids, Capture((_NAME,), pool.take))
            for ids, pool in zip(some, pools, strict=True)
        ]
        try:
            for handle in handles:
                wait(handle)
        finally:
            for handle in handles:
                handle.cancel()
        found += [Embedding(pool.vector(), len(ids)) for ids, pool in zip(some, pools, strict=True)]
    return found


def _ids_of(llm: Llama, text: Prompt) -> list[int]:
    if isinstance(text, str):
        return list(llm._tokenizer.encode(text))
    return as_ids(text)


@dataclass(slots=True)
class _Pool:
    """Takes the rows of a text, some at a time, on the engine's thread."""

    pooling: Pooling
    rows: list[Vectors] = field(default_factory=list)
    total: Any = 0.0
    count: int = 0

    def take(self, name: str, first: int, rows: Vectors) -> None:
        self.count += len(rows)
        if self.pooling == "mean":
            self.total = self.total + rows.sum(axis=0, dtype="float64")
        elif self.pooling == "last":
            self.rows = [rows[-1]]
        elif self.pooling == "none" or first == 0:
            self.rows.append(rows if self.pooling == "none" else rows[0])

    def vector(self) -> Vectors:
        import numpy as np

        if self.pooling == "none":
            vector = np.concatenate(self.rows)
        elif self.pooling == "mean":
            vector = (self.total / self.count).astype(np.float32)
        else:
            vector = self.rows[0]
        if not np.isfinite(vector).all():
            raise NumericsError(
                "an embedding is not finite; the weights or a kernel are broken: compare with "
                "precision='exact'"
            )
        return vector


def _unit(vector: Vectors) -> Vectors:
    import numpy as np

    length = np.linalg.norm(vector.astype(np.float64), axis=-1, keepdims=True)
    unit: Vectors = (vector / np.where(length == 0, 1, length)).astype(np.float32)
    return unit
