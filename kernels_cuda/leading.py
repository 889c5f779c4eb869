"""leading: of each row of logits the largest ones, in order, so that whole rows need not leave the
device. A block takes a row."""

from __future__ import annotations

from kernels_cuda import Launch

LEADING = 64  # how many
WORDS = 1 + 2 * LEADING
THREADS = 1024
GROUPS = 256  # of a row's logits, whose largest ones give a bound
ROOM = 1024  # for logits that reach the bound


def launch(op, variant, dims):
    return Launch((dims["R"], 1, 1), (THREADS, 1, 1))


def kernel(op, variant):
    from numba import cuda
    from numba.cuda import types

    from kernels_cuda.memory import shared
    from kernels_cuda.ptx import as_u32, grid_go, grid_wait, load_f32, max_f32, store_4

    f32, i32, i64, u32 = types.float32, types.int32, types.int64, types.uint32
    maxima_of, values_of = shared(THREADS, f32), shared(ROOM, f32)
    ids_of, counts_of = shared(ROOM, i32), shared(4, i32)
    device = cuda.jit(device=True)
    lowest = f32(float("-inf"))

    @device
    def at(row, i, N):
        return load_f32(row + i * 4) if i < N else lowest

    def leading(leading, logits, R, words, N):
        """found[0], of each row, is how many logits reach a bound that LEADING of them or more
        reach, -1 where one is not finite; found[1 : 1 + LEADING] are the ids of the largest, the
        rest the bits of these, by falling logit and then rising id. Where found[0] is negative or
        more than ROOM, nothing else is written."""
        grid_go()
        maxima, values, ids, counts = maxima_of(), values_of(), ids_of(), counts_of()
        thread = i64(cuda.threadIdx.x)
        row = logits + i64(cuda.blockIdx.x) * N * 4
        found = leading + i64(cuda.blockIdx.x) * words * 4
        if thread < 2:
            counts[thread] = 0
        maxima[thread] = lowest
        cuda.syncthreads()
        grid_wait()
        largest, wrong = lowest, False
        for start in range(thread, N, 4 * THREADS):
            a, b = at(row, start, N), at(row, start + THREADS, N)
            c, d = at(row, start + 2 * THREADS, N), at(row, start + 3 * THREADS, N)
            largest = max_f32(largest, max_f32(max_f32(a, b), max_f32(c, d)))
            inside = f32(0.0) * a
            if start + THREADS < N:
                inside += f32(0.0) * b
            if start + 2 * THREADS < N:
                inside += f32(0.0) * c
            if start + 3 * THREADS < N:
                inside += f32(0.0) * d
            wrong = wrong or inside != f32(0.0)
        maxima[thread] = largest
        if wrong:
            counts[1] = 1
        cuda.syncthreads()
        # The largest of each group, and the one of them that LEADING groups reach.
        if thread < GROUPS:
            for i in range(1, THREADS // GROUPS):
                largest = max_f32(largest, maxima[thread + i * GROUPS])
        cuda.syncthreads()
        if thread < GROUPS:
            maxima[thread] = largest
        cuda.syncthreads()
        if thread < GROUPS:
            before = 0
            for i in range(GROUPS):
                other = maxima[i]
                if other > largest or (other == largest and i < thread):
                    before += 1
            if before == LEADING - 1:
                maxima[GROUPS] = largest
        cuda.syncthreads()
        bound = maxima[GROUPS]
        for start in range(thread, N, 4 * THREADS):
            for j in range(4):
                i = start + j * THREADS
                v = at(row, i, N)
                if v >= bound and i < N:
                    place = cuda.atomic.add(counts, 0, 1)
                    if place < ROOM:
                        values[place] = v
                        ids[place] = i
        cuda.syncthreads()
        count = i64(counts[0])
        if thread == 0:
            store_4(found, u32(count) if counts[1] == 0 else u32(0xFFFFFFFF))
        if thread < min(count, i64(ROOM)) and count <= ROOM:
            mine, my_id, rank = values[thread], ids[thread], i64(0)
            for j in range(count):
                other = values[j]
                if other > mine or (other == mine and ids[j] < my_id):
                    rank += 1
            if rank < LEADING:
                store_4(found + (1 + rank) * 4, u32(my_id))
                store_4(found + (1 + LEADING + rank) * 4, as_u32(mine))

    return leading
