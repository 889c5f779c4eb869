"""Builds or loads ops, runs the first on fixed numbers, and prints what happened as JSON.

python one_op.py MODULE:OP:VARIANT ...
"""

import json
import sys
import warnings

import numpy as np
from op_faces import run_compiled

from llama3jit.compile import cache
from llama3jit.compile.library import Library
from llama3jit.compile.targets import host_target
from llama3jit.compile.units import Unit
from llama3jit.devices.cpu.pool import WALKER, Pool

ROW = np.linspace(-2, 2, 24, dtype=np.float32)
OPERANDS = {
    "add": {"out": np.ones((1, 24), np.float32), "x": ROW[None]},
    "swiglu": {"out": np.zeros((1, 24), np.float32), "gate": ROW[None], "up": ROW[None]},
    "kv_append": {
        "k_cache": np.zeros((1, 1, 24, 1), np.uint16),
        "v_cache": np.zeros((1, 1, 1, 24), np.uint16),
        "k": ROW[None, None],
        "v": ROW[None, None],
        "positions": np.zeros(1, np.int32),
        "seq_of": np.zeros(1, np.int32),
        "block_tables": np.zeros((1, 1), np.int32),
    },
}

units = [Unit(*argument.split(":")) for argument in sys.argv[1:]]
unit = units[0]
told = []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    library = Library([WALKER, *units], lambda *call: told.append(call))
operands = OPERANDS[unit.op]
run_compiled(library, Pool(1, library), unit, operands)
print(
    json.dumps(
        {
            "built": library.built,
            "stem": cache.stem_of(unit, host_target()),
            "rungs": {str(u): rung for u, rung in library.rung_of.items()},
            "reasons": library.reasons,
            "told": told,
            "result": next(iter(operands.values())).ravel().tolist(),
            "imported": [name for name in ("numba", "llvmlite") if name in sys.modules],
            "warnings": [str(w.message) for w in caught],
        }
    )
)
