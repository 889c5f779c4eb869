"""What the processor that code is generated for can do."""

import os
from functools import cache

import llvmlite.binding as llvm


@cache
def _present():
    flags = os.environ.get("NUMBA_CPU_FEATURES")
    if flags is not None:
        return frozenset(flag[1:] for flag in flags.split(",") if flag.startswith("+"))
    return frozenset(name for name, there in llvm.get_host_cpu_features().items() if there)


def has(feature):
    """Whether the target, the builder's or else this host, has a feature by LLVM's name."""
    return feature in _present()
