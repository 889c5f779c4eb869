"""Array views on device memory, by address; they own nothing."""

from functools import cache

from numba.cuda import cgutils, types
from numba.cuda.extending import intrinsic
from numba.cuda.np import arrayobj

from llama3jit.ops import views


@cache
def viewer(dtype, ndim):
    """See llama3jit.ops.views."""
    return views.viewer(
        dtype, ndim, types=types, cgutils=cgutils, arrayobj=arrayobj, intrinsic=intrinsic
    )
