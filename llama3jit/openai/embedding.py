"""create_embedding, in OpenAI's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama3jit.api import Llama
    from llama3jit.arguments import Prompt


def create_embedding(
    llm: Llama, input: Prompt | Sequence[Prompt], model: str | None = None
) -> dict[str, Any]:
    """The vectors of a text, or of several, as llama-cpp-python and OpenAI shape them.

    A model that was opened by `load` gives the mean over a text's tokens; one that was opened by
    `Llama(...)` what its `pooling_type` says, which is a vector for each token unless it was given.
    model: the name in the answer. Raises as `embed` does.
    """
    from llama3jit.embedding import embed_texts, split_texts

    texts, _ = split_texts(input)
    found = embed_texts(llm, texts, llm._defaults.pooling)
    count = sum(one.tokens for one in found)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "embedding": one.vector.tolist(), "index": i}
            for i, one in enumerate(found)
        ],
        "model": llm._defaults.model if model is None else model,
        "usage": {"prompt_tokens": count, "total_tokens": count},
    }
