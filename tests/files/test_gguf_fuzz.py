"""Thousands of mutated headers: a clear error or a right load, in little memory and time.

The mutants run in a child process whose address space may grow by 200 MB; run this file as a
script with a folder, a seed and a count to see one again.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from gguf_writer import array, gguf_bytes, header_bytes, key_value, string

from llama3jit.errors import ModelFormatError, ModelNotFoundError, UnsupportedError
from llama3jit.files.gguf import open_gguf

LLAMA3_VOCAB = Path(__file__).parents[3] / "shared/data/ggml-vocab-llama-bpe.gguf"
GROWTH = 200 << 20
NUMBERS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 13, 31, 32, 48, 255, 256, 65535, 65536]
NUMBERS += [
    (1 << bits) + step for bits in (16, 20, 24, 31, 32, 33, 40, 61, 63) for step in (-1, 0, 1)
]
NUMBERS += [(1 << 64) - step for step in (1, 2, 8, 16, 32)]


def bases() -> list[bytes]:
    """Sound files that the mutants come from."""
    rng = np.random.default_rng(0)
    metadata = {
        "general.architecture": "llama",
        "general.alignment": np.uint32(32),
        "llama.block_count": 2,
        "llama.rope.freq_base": 10000.0,
        "flag": True,
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(40)] + ["", "☃", "a\0b"],
        "tokenizer.ggml.scores": [0.5] * 43,
        "tokenizer.ggml.token_type": [1] * 43,
        "nested": [[1, 2], [3], [4, 5, 6]],
        "nested.text": [["a", "b"], [], ["ccc"]],
        "bools": np.array([True, False]),
        "wide": np.arange(9, dtype=np.uint64),
    }
    tensors = {
        "token_embd.weight": (rng.integers(0, 256, 43 * 34, np.uint8), "Q8_0", (43, 32)),
        "blk.0.attn_norm.weight": rng.standard_normal(32, np.float32),
        "blk.0.ffn_up.weight": (rng.integers(0, 256, 8 * 20, np.uint8), "Q4_1", (8, 32)),
        "blk.0.ffn_up.bias": rng.standard_normal((1, 8)).astype(np.float16),
        "unlisted": (bytes(100), 77, (10, 10)),
    }
    split = metadata | {"split.no": np.uint16(0), "split.count": np.uint16(1)}
    return [gguf_bytes(metadata, tensors), gguf_bytes(split, tensors, alignment=8, version=2)]


def mutant(base: bytes, rng: random.Random, header: int) -> bytes:
    """The base with one to four changes, most of them in its first `header` bytes."""
    raw = bytearray(base)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 4])):
        at = rng.randrange(min(header, len(raw)) if rng.random() < 0.95 else len(raw))
        kind = rng.randrange(6)
        if kind == 0:
            raw[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            raw[at] = rng.choice([0, 1, 8, 9, 10, 127, 128, 255])
        elif kind == 2:
            raw[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        elif kind == 3:
            raw[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) & 0xFFFFFFFF)
        elif kind == 4:
            source = rng.randrange(len(raw))
            raw[at:at] = raw[source : source + rng.randrange(1, 40)]
        elif rng.random() < 0.5:
            del raw[at : at + rng.randrange(1, 40)]
        else:
            del raw[at:]
        if not raw:
            return b""
    return bytes(raw)


def load(path: Path) -> bool:
    """Open and read all of it; whether it loads. Any other error is passed on."""
    message = ""
    try:
        with open_gguf(path) as file:
            for key in file.metadata:
                value, info = file.metadata[key], file.metadata.array_info(key)
                assert info is None or len(value) == info[1]
                if info and info[0] == "str":
                    offsets, lengths = file.metadata.string_spans(key)
                    assert (offsets + lengths <= file.mapping.size).all()
            for name, tensor in file.tensors.items():
                data = file.data(name)
                assert data.size == tensor.nbytes > 0
                data.sum()
                file.release(name)
    except (ModelFormatError, UnsupportedError, ModelNotFoundError) as error:
        message = str(error)
    assert not message or (str(path.parent) in message and len(message) < 600)
    return not message


def run_mutants(folder: Path, seed: int, count: int) -> None:
    """Load `count` mutants under the memory limit; print how many loaded and the slowest."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + GROWTH
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    rng, path = random.Random(seed), folder / "mutant.gguf"
    sources, loaded, slowest = bases(), 0, 0.0
    for index in range(count):
        base = sources[index % len(sources)]
        path.write_bytes(mutant(base, rng, 1900))
        start = time.perf_counter()
        try:
            loaded += load(path)
        except BaseException:
            print(f"mutant {index} of seed {seed} is kept in {path}", file=sys.stderr)
            raise
        slowest = max(slowest, time.perf_counter() - start)
    print(loaded, round(slowest, 3))


def test_the_bases_load(tmp_path: Path) -> None:
    for raw in bases():
        (tmp_path / "m.gguf").write_bytes(raw)
        assert load(tmp_path / "m.gguf")
        assert raw.find(b"unlisted") < 1900


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux counts it")
@pytest.mark.parametrize("seed", [1, 2])
def test_thousands_of_mutants(tmp_path: Path, seed: int) -> None:
    count = 4000
    tests = Path(__file__).parents[1]
    paths = [str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, __file__, str(tmp_path), str(seed), str(count)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded, slowest = done.stdout.split()
    assert 100 < int(loaded) < count - 1000
    assert float(slowest) < 1.0


BOMBS = {
    "arrays of nothing": array(9, [array(4, [])[1]] * 100_000),
    "strings of nothing": array(8, [string("")] * 500_000),
    "one long string": (8, struct.pack("<Q", 1 << 24) + bytes(1 << 24)),
}


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux counts it")
@pytest.mark.parametrize("name", BOMBS)
def test_opening_takes_no_more_than_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header_bytes([key_value("k", BOMBS[name])]))
    tracemalloc.start()
    try:
        open_gguf(path).close()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * path.stat().st_size


@pytest.mark.skipif(not LLAMA3_VOCAB.exists(), reason="shared/data is not beside the checkout")
def test_mutants_of_a_real_vocabulary(tmp_path: Path) -> None:
    base = bytearray(LLAMA3_VOCAB.read_bytes())
    fields = [base.index(key) + len(key) for key in (b"ggml.tokens", b"token_type", b"ggml.merges")]
    rng, path = random.Random(3), tmp_path / "m.gguf"
    outcomes = set()
    for _ in range(25):
        raw = bytearray(base)
        at = rng.choice(fields) + rng.choice([0, 4, 8, 16, 24])
        raw[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
        path.write_bytes(raw)
        start = time.perf_counter()
        outcomes.add(load(path))
        assert time.perf_counter() - start < 3
    assert outcomes == {False} or outcomes == {False, True}


if __name__ == "__main__":
    run_mutants(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
