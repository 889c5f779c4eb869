"""A model file in other types, quantised by the gguf package from what the file's weights mean.

    python bench/requantise.py MODEL FOLDER [--types q4_0,q8_0]

Matrices become the type, all of them; vectors stay as they are. Types whose blocks do not fit in
the model's rows are left out. The package can write Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, MXFP4, TQ1_0,
TQ2_0, F16, BF16 and F32; codebooks and K-quants it can only read.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from llama3jit.errors import Llama3JitError
from llama3jit.files.formats import FORMATS
from llama3jit.files.store import resolve

TYPES = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "f16", "bf16", "tq1_0", "tq2_0")
OURS = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count")  # the writer's own
DROPPED = (*OURS, "general.architecture", "general.file_type", "general.quantization_version")


def fits(model: Path, kind: str) -> bool:
    """Whether all rows of the model's matrices are whole blocks of the type."""
    import gguf

    size = FORMATS[kind.upper()].block_size
    tensors = gguf.GGUFReader(model).tensors
    return all(int(t.shape[0]) % size == 0 for t in tensors if len(t.shape) == 2)


def requantise(model: Path, out: Path, kind: str) -> None:
    """Write the model with all its matrices in one type."""
    import gguf

    reader = gguf.GGUFReader(model)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, architecture)
    for name, field in reader.fields.items():
        if name not in DROPPED:
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    dtype = gguf.GGMLQuantizationType[kind.upper()]
    for tensor in reader.tensors:
        if len(tensor.shape) == 2:
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            quantised: Any = gguf.quantize(values, dtype)
            # Floats of a NumPy type say by that what they are.
            plain = kind in ("f16", "f32")
            writer.add_tensor(tensor.name, quantised, raw_dtype=None if plain else dtype)
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=False)
    writer.close()


def requantised(model: Path, folder: Path, kinds: list[str]) -> dict[str, Path]:
    """A file of each type that fits, made if it is not in the folder yet."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for kind in kinds:
        if not fits(model, kind):
            print(f"{kind}: its blocks do not fit in the rows of {model.name}", file=sys.stderr)
            continue
        path = folder / f"{model.name.split('.')[0]}.{kind.upper()}.gguf"
        if not path.is_file():
            fresh = path.with_suffix(".new")
            requantise(model, fresh, kind)
            fresh.rename(path)
        found[kind] = path
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a model in other types.")
    parser.add_argument("model", help="a name or a GGUF file")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--types", default=",".join(TYPES))
    given = parser.parse_args()
    try:
        model = Path(resolve(given.model))
    except Llama3JitError as error:
        raise SystemExit(str(error)) from None
    for kind, path in requantised(model, given.folder, given.types.split(",")).items():
        print(f"{kind}: {path}")


if __name__ == "__main__":
    main()
