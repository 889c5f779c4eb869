"""A model file of Llama 3.2 1B's shape with random weights, to measure with where there is none.

    python bench/synthetic.py OUT --type q4_0 [--vocabulary FILE] [--layers 16]

The vocabulary is a GGUF file's, such as llama.cpp's models/ggml-vocab-llama-bpe.gguf; without one
the file has none, and only ids can be given to it. Every layer has the same random values: what is
measured does not depend on them. 1.0 GB as q4_0, 1.6 GB as q8_0, 3.0 GB as f16.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD_DIM, N_VOCAB = 2048, 8192, 32, 8, 64, 128256
N_CTX = 8192

# Bytes of a block of 32 values; float16 numbers in front of it and what they are.
BLOCKS = {"q4_0": (18, (0.004,)), "q4_1": (20, (0.004, -0.03)), "q8_0": (34, (0.0003,))}
COPIED = ("tokenizer.",)


def matrix(kind: str, n: int, k: int) -> NDArray[Any]:
    """Random weights [n, k]: blocks as uint8, or float16."""
    rng = np.random.default_rng(n * k)
    if kind == "f16":
        part = (0.02 * rng.standard_normal(2**20, np.float32)).astype(np.float16)
        return np.resize(part, (n, k))
    size, heads = BLOCKS[kind]
    part = rng.integers(0, 256, (2**16, size), np.uint8)
    part[:, : 2 * len(heads)] = np.array(heads, np.float16).view(np.uint8)
    return np.resize(part, (n, k // 32 * size))


def shapes(n_layers: int) -> dict[str, tuple[int, int]]:
    """All matrices but the tied output."""
    kv = N_HEAD_KV * HEAD_DIM
    layer = {
        "attn_q": (N_EMBD, N_EMBD),
        "attn_k": (kv, N_EMBD),
        "attn_v": (kv, N_EMBD),
        "attn_output": (N_EMBD, N_EMBD),
        "ffn_gate": (N_FF, N_EMBD),
        "ffn_up": (N_FF, N_EMBD),
        "ffn_down": (N_EMBD, N_FF),
    }
    found = {"token_embd.weight": (N_VOCAB, N_EMBD)}
    for i in range(n_layers):
        found |= {f"blk.{i}.{name}.weight": shape for name, shape in layer.items()}
    return found


def write(out: str, kind: str, n_layers: int, vocabulary: str | None) -> None:
    """Write the file."""
    import gguf

    writer = gguf.GGUFWriter(out, "llama")
    writer.add_name(f"synthetic 1B {kind}")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    if vocabulary is None:
        writer.add_tokenizer_model("none")
    else:
        copy_vocabulary(writer, vocabulary)
    dtype = None if kind == "f16" else gguf.GGMLQuantizationType[kind.upper()]
    made: dict[tuple[int, int], NDArray[Any]] = {}
    for name, shape in shapes(n_layers).items():
        if shape not in made:
            made[shape] = matrix(kind, *shape)
        writer.add_tensor(name, made[shape], raw_dtype=dtype)
    norms = [
        f"blk.{i}.{name}.weight" for i in range(n_layers) for name in ("attn_norm", "ffn_norm")
    ]
    for name in (*norms, "output_norm.weight"):
        writer.add_tensor(name, np.ones(N_EMBD, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()


def copy_vocabulary(writer: Any, path: str) -> None:
    """Copy the tokenizer's keys of another file."""
    import gguf

    for name, field in gguf.GGUFReader(path).fields.items():
        if name.startswith(COPIED):
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a synthetic Llama 3.2 1B.")
    parser.add_argument("out")
    parser.add_argument("--type", choices=[*BLOCKS, "f16"], default="q4_0")
    parser.add_argument("--vocabulary", help="a GGUF file whose vocabulary is copied")
    parser.add_argument("--layers", type=int, default=16)
    given = parser.parse_args()
    write(given.out, given.type, given.layers, given.vocabulary)


if __name__ == "__main__":
    main()
