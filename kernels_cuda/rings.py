"""Rings of pieces of a weight in shared memory, one for each warp, that copies fill ahead of use
(sm_90).

A ring has `stages` places of `size` bytes and a barrier for each. Lane 0 starts the copies: as many
as there are places at once, then one whenever the warp has taken a piece into registers.
"""

from numba import cuda
from numba.cuda import types

from kernels_cuda.ptx import barrier_init, barriers_visible, copy_bulk, expect

u32 = types.uint32
device = cuda.jit(device=True)


@device
def open_ring(barriers, stages, lane):
    """Make the barriers, 8 bytes each."""
    if lane == 0:
        for stage in range(stages):
            barrier_init(barriers + stage * 8, u32(1))
        barriers_visible()
    cuda.syncwarp()


@device
def fetch(place, barrier, source, size):
    """Start a copy into a place whose last piece has been taken; for lane 0."""
    expect(barrier, u32(size))
    copy_bulk(place, source, u32(size), barrier)
