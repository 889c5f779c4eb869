"""How attention works on a block of the cache, in each of its types."""

from __future__ import annotations

import numpy as np

from kernels_cpu import kv_plain, kv_quantised
from kernels_cpu.simd import load_f32, load_half
from kernels_cpu.simd_int import nibble_of, signed_byte_of

PLAIN = {"scores_of": kv_plain.scores_of, "mix": kv_plain.mix}
QUANTISED = {"kv": "u8", "scores_of": kv_quantised.scores_of, "mix": kv_quantised.mix}

# `scores_of` and `mix` work on four rows and one block. For f16 and f32, `load_kv` loads 16
# elements, of which LINE lie in one cache line. For quantised types, a key's lane has PARTS
# components in each of its WORDS words of four bytes: `part_of` gives one as float / UNIT,
# `component` says which; `value_of` gives 16 components of a token in the same way.
KV = {
    "f16": {"kv": "u16", **PLAIN, "load_kv": load_half, "LINE": 32},
    "f32": {"kv": "f32", **PLAIN, "load_kv": load_f32, "LINE": 16},
    "q8_0": {
        **QUANTISED,
        "WORDS": 8,
        "PARTS": 4,
        "part_of": signed_byte_of,
        "component": kv_quantised.component_of_byte,
        "UNIT": np.float32(2.0**-24),
        "value_of": kv_quantised.bytes_of_value,
    },
    "q4_0": {
        **QUANTISED,
        "WORDS": 4,
        "PARTS": 8,
        "part_of": nibble_of,
        "component": kv_quantised.component_of_nibble,
        "UNIT": np.float32(1.0),
        "value_of": kv_quantised.nibbles_of_value,
    },
}
