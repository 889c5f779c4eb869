"""Run in a copy of the tree to which docs/add-an-op.md was applied: a model in Q5_0 whose logits
are bounded, on both devices. The argument is a folder for its files."""

import sys
from pathlib import Path

import gguf
import numpy as np

from llama3jit.devices.choose import open_runner
from llama3jit.files.gguf import open_gguf
from llama3jit.model.batch import Piece, make_batch
from llama3jit.model.config import read_config
from llama3jit.ops import dequantise

Q5_0 = gguf.GGMLQuantizationType.Q5_0


def write(path, cap):
    rng = np.random.default_rng(0)
    file = gguf.GGUFWriter(path, "llama")
    file.add_context_length(64)
    file.add_block_count(1)
    file.add_embedding_length(64)
    file.add_feed_forward_length(96)
    file.add_head_count(4)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_final_logit_softcapping(cap)
    shapes = {"token_embd": (300, 64), "blk.0.ffn_down": (64, 96)}
    shapes |= {f"blk.0.ffn_{name}": (96, 64) for name in ("gate", "up")}
    shapes |= {f"blk.0.attn_{name}": (64, 64) for name in ("q", "k", "v", "output")}
    for name, shape in shapes.items():
        x = rng.standard_normal(shape).astype(np.float32)
        file.add_tensor(f"{name}.weight", gguf.quantize(x, Q5_0), raw_dtype=Q5_0)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        file.add_tensor(f"{name}.weight", np.ones(64, np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def logits(path, device):
    with open_gguf(path) as file:
        runner = open_runner(file, read_config(file), device=device, max_sequences=1)
        found = runner.forward(make_batch([Piece([1, 2, 3], 0, [0], "all")])).copy()
        runner.close()
    return found


def check_values():
    """The rows of the format give what the gguf package gives, whole and one by one."""
    blocks = np.random.default_rng(1).integers(0, 256, (3, 44), np.uint8)
    blocks[:, [1, 23]] &= 0x3B  # scales that are finite
    expected = gguf.dequantize(blocks, Q5_0)
    assert np.array_equal(dequantise.rows(blocks, "q5_0"), expected)
    wide = blocks.astype(np.int64)
    single = [[dequantise.q5_0(wide, n, k) for k in range(64)] for n in range(3)]
    assert np.array_equal(np.array(single, np.float32), expected)


def main():
    folder = Path(sys.argv[1])
    check_values()
    free = logits(write(folder / "free.gguf", 0.0), "reference")
    assert np.abs(free).max() > 6, "nothing to bound"
    capped = write(folder / "capped.gguf", 5.0)
    for device in ("reference", "cpu"):
        assert np.abs(logits(capped, device) - 5 * np.tanh(free / 5)).max() < 1e-3, device


main()
