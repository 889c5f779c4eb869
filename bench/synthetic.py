"""A model file of Llama's shape with random weights, to measure with where there is none.

    python bench/synthetic.py OUT --type q4_k [--output q8_0] [--shape 1b] [--vocabulary FILE]

The shapes are those of Llama 3.2 1B and of Llama 3 8B.

All matrices are of the type, but for the output's, which is a matrix of its own in Q8_0, or of the
type if that is of plain floats; `--output tied` makes it the embeddings again. The vocabulary is a
GGUF file's, such as llama.cpp's models/ggml-vocab-llama-bpe.gguf; without one the file has none,
and only ids can be given to it. Every layer has the same random values: what is measured does not
depend on them. 1.0 GB as q4_0 or q4_k, 1.6 GB as q8_0, 3.0 GB as f16; of 8B 4.9, 8.5 and 16 GB.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llama3jit.files.formats import FORMATS

if TYPE_CHECKING:
    from numpy.typing import NDArray

N_CTX = 8192


@dataclass(frozen=True, slots=True)
class Sizes:
    """A model's shape, by the names of the metadata."""

    n_layers: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int = 128256


SHAPES = {"1b": Sizes(16, 2048, 8192, 32, 8, 64), "8b": Sizes(32, 4096, 14336, 32, 8, 128)}

# What a block of random bytes needs for values of about 0.02: where its halves lie and what they
# are. Minima are such that the values' mean is about 0.
HALVES = {
    "q4_0": {0: 4e-3},
    "q4_1": {0: 4e-3, 2: -0.03},
    "q5_0": {0: 2e-3},
    "q5_1": {0: 2e-3, 2: -0.031},
    "q8_0": {0: 3e-4},
    "q2_k": {80: 1.5e-3, 82: 2.25e-3},
    "q3_k": {108: 5e-4},
    "q4_k": {0: 8e-5, 2: 6e-4},
    "q5_k": {0: 4e-5, 2: 6e-4},
    "q6_k": {208: 1.5e-5},
    "iq4_nl": {0: 3e-4},
    "iq4_xs": {0: 1.5e-5},
    "mxfp4": {},
}
EXPONENTS = {"mxfp4": {0: 120}}  # bytes that are powers of two
FLOATS = ("f16", "bf16")
TYPES = (*HALVES, *FLOATS)
BLOCKS = 2**14  # as many are random; then they repeat


def matrix(kind: str, n: int, k: int) -> NDArray[np.uint8]:
    """Random weights of a type, as rows of bytes u8[n, row_bytes]."""
    rng = np.random.default_rng(n * k)
    form = FORMATS[kind.upper()]
    if kind in FLOATS:
        values = 0.02 * rng.standard_normal(256 * BLOCKS, np.float32)
        if kind == "f16":
            part = values.astype(np.float16).view(np.uint8)
        else:
            part = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        part = rng.integers(0, 256, (BLOCKS, form.block_bytes), np.uint8)
        for at, number in HALVES[kind].items():
            part[:, at : at + 2] = np.array([number], np.float16).view(np.uint8)
        for at, exponent in EXPONENTS.get(kind, {}).items():
            part[:, at] = exponent
    return np.resize(part, (n, form.row_bytes(k)))


def shapes(sizes: Sizes) -> dict[str, tuple[int, int]]:
    """All matrices but the output's."""
    n, n_ff, kv = sizes.n_embd, sizes.n_ff, sizes.n_head_kv * sizes.head_dim
    heads = sizes.n_head * sizes.head_dim
    layer = {
        "attn_q": (heads, n),
        "attn_k": (kv, n),
        "attn_v": (kv, n),
        "attn_output": (n, heads),
        "ffn_gate": (n_ff, n),
        "ffn_up": (n_ff, n),
        "ffn_down": (n, n_ff),
    }
    found = {"token_embd.weight": (sizes.n_vocab, n)}
    for i in range(sizes.n_layers):
        found |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
    return found


def write(out: str, kind: str, output: str, sizes: Sizes, vocabulary: str | None) -> None:
    """Write the file; `output` is the type of the output's matrix, or "tied"."""
    import gguf

    writer = gguf.GGUFWriter(out, "llama")
    put_metadata(writer, kind, sizes)
    if vocabulary is None:
        writer.add_tokenizer_model("none")
    else:
        copy_vocabulary(writer, vocabulary)
    matrices = {name: (kind, *shape) for name, shape in shapes(sizes).items()}
    if output != "tied":
        matrices["output.weight"] = (output, sizes.n_vocab, sizes.n_embd)
    made: dict[tuple[str, int, int], NDArray[np.uint8]] = {}
    for name, form in matrices.items():
        if form not in made:
            made[form] = matrix(*form)
        writer.add_tensor(name, made[form], raw_dtype=gguf.GGMLQuantizationType[form[0].upper()])
    layers = range(sizes.n_layers)
    norms = [f"blk.{i}.{name}.weight" for i in layers for name in ("attn_norm", "ffn_norm")]
    for name in (*norms, "output_norm.weight"):
        writer.add_tensor(name, np.ones(sizes.n_embd, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()


def put_metadata(writer: Any, kind: str, sizes: Sizes) -> None:
    """All keys but the tokenizer's."""
    writer.add_name(f"synthetic {kind}")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(sizes.n_embd)
    writer.add_block_count(sizes.n_layers)
    writer.add_feed_forward_length(sizes.n_ff)
    writer.add_head_count(sizes.n_head)
    writer.add_head_count_kv(sizes.n_head_kv)
    writer.add_rope_dimension_count(sizes.head_dim)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(sizes.n_vocab)


def copy_vocabulary(writer: Any, path: str) -> None:
    """Copy the tokenizer's keys of another file."""
    import gguf

    for name, field in gguf.GGUFReader(path).fields.items():
        if name.startswith("tokenizer."):
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a synthetic Llama.")
    parser.add_argument("out")
    parser.add_argument("--type", choices=TYPES, default="q4_0")
    parser.add_argument("--output", choices=[*TYPES, "tied"], help="the type of output.weight")
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--vocabulary", help="a GGUF file whose vocabulary is copied")
    parser.add_argument("--layers", type=int, help="in place of the shape's")
    given = parser.parse_args()
    output = given.output or (given.type if given.type in FLOATS else "q8_0")
    sizes = SHAPES[given.shape]
    if given.layers is not None:
        sizes = replace(sizes, n_layers=given.layers)
    write(given.out, given.type, output, sizes, given.vocabulary)


if __name__ == "__main__":
    main()
