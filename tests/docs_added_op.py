"""Run in a copy of the tree to which docs/add-an-op.md was applied: a model in Q1_0 whose logits
are bounded, on both devices. The argument is a folder for its files."""

import struct
import sys
from pathlib import Path

import gguf
import numpy as np

from llama3jit.devices.choose import open_runner
from llama3jit.files.gguf import open_gguf
from llama3jit.model.batch import Piece, make_batch
from llama3jit.model.config import read_config
from llama3jit.ops import dequantise

Q1_0 = gguf.GGMLQuantizationType.Q1_0


def random_rows(rng, n, k):
    """u8[n, row_bytes]: any signs, scales about 1."""
    blocks = rng.integers(0, 256, (n * k // 128, 18), np.uint8)
    scales = rng.uniform(0.5, 1.5, (len(blocks), 1)).astype(np.float16)
    blocks[:, :2] = scales.view(np.uint8)
    return blocks.reshape(n, -1)


def write(path, cap):
    rng = np.random.default_rng(0)
    file = gguf.GGUFWriter(path, "llama")
    file.add_context_length(64)
    file.add_block_count(1)
    file.add_embedding_length(128)
    file.add_feed_forward_length(256)
    file.add_head_count(4)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_final_logit_softcapping(cap)
    shapes = {"token_embd": (300, 128), "blk.0.ffn_down": (128, 256)}
    shapes |= {f"blk.0.ffn_{name}": (256, 128) for name in ("gate", "up")}
    shapes |= {f"blk.0.attn_{name}": (128, 128) for name in ("q", "k", "v", "output")}
    for name, shape in shapes.items():
        raw = random_rows(rng, shape[0], shape[1])
        file.add_tensor(f"{name}.weight", raw, raw_dtype=Q1_0)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        file.add_tensor(f"{name}.weight", np.ones(128, np.float32))
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
    """The rows of the format give what its bits say, whole and one by one."""
    raw = random_rows(np.random.default_rng(1), 3, 256)
    expected = []
    for d, signs in struct.iter_unpack("<e16s", raw.tobytes()):
        word = int.from_bytes(signs, "little")
        expected += [d if word >> i & 1 else -d for i in range(128)]
    expected = np.array(expected, np.float32).reshape(3, 256)
    assert np.array_equal(dequantise.rows(raw, "q1_0"), expected)
    one = dequantise.FORMATS["q1_0"]["dequantise"]
    single = [[one(raw, n, k) for k in range(256)] for n in range(3)]
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
