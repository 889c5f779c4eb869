"""One forward pass: every thread walks the rows of a lowered plan.

A row is a run of 64-bit words: the address of the op, the address of its item count, the row's
bytes, whether a barrier follows, then the op's operands (see llama3jit.compile.entry). Threads
take items of a share by tickets, a few at a time; a row has a ticket for each share.
kernels_cpu.control says what shares and the control block are.
"""

from numba import njit

from kernels_cpu.control import (
    ARRIVED,
    CANCEL_AT,
    CANCELLED,
    EPOCH,
    FAILED,
    GENERATION,
    N_ROWS,
    PARKED,
    ROWS,
    SHARES,
    STOP,
    THREADS,
    TICKETS,
    VERDICT,
    WORD,
)
from kernels_cpu.memory import call_count, call_op, load_i64, store_i64
from kernels_cpu.sync import (
    atomic_add,
    atomic_load,
    atomic_store,
    unpark,
    wait_or_park,
    wait_while,
)

# Offsets in a row.
COUNT = 1 * WORD
ROW_BYTES = 2 * WORD
BARRIER = 3 * WORD

# Tickets that a thread draws for a row if the work is even; more let a slow thread fall behind.
DRAWS = 8


@njit
def barrier(control, threads):
    """Wait for all threads; the last one decides for all whether to go on. 0 is to go on."""
    generation = atomic_load(control + GENERATION)
    if atomic_add(control + ARRIVED, 1) == threads - 1:
        verdict = load_i64(control + FAILED)
        if verdict == 0 and atomic_load(load_i64(control + CANCEL_AT)) != 0:
            verdict = CANCELLED
        store_i64(control + VERDICT, verdict)
        atomic_store(control + ARRIVED, 0)
        atomic_store(control + GENERATION, generation + 1)
    else:
        wait_while(control + GENERATION, generation)
    return load_i64(control + VERDICT)


@njit
def shares_of(control):
    """How many shares the items of a row are cut into."""
    return min(load_i64(control + THREADS), SHARES)


@njit
def work(control, row, tickets, home, shares):
    """Do items of one row until there are none left: of share `home`, then of the others."""
    op = load_i64(row)
    count = call_count(load_i64(row + COUNT), row)
    grain = max(1, count // (load_i64(control + THREADS) * DRAWS))
    cancel = load_i64(control + CANCEL_AT)
    for i in range(shares):
        share = (home + i) % shares
        begin = count * share // shares
        end = count * (share + 1) // shares
        first = begin
        while first < end and atomic_load(cancel) == 0:
            first = begin + atomic_add(tickets + share * WORD, grain)
            if first < end:
                status = call_op(op, row, first, min(first + grain, end))
                if status != 0:
                    atomic_store(control + FAILED, status)
                first += grain


@njit
def walk(control, index):
    """Walk all rows, in step with the other threads; 0, CANCELLED, or an op's status."""
    row = load_i64(control + ROWS)
    tickets = load_i64(control + TICKETS)
    threads = load_i64(control + THREADS)
    shares = shares_of(control)
    home = index * shares // threads
    for _ in range(load_i64(control + N_ROWS)):
        # Read before the last barrier: after it the rows may be gone.
        following = row + load_i64(row + ROW_BYTES)
        work(control, row, tickets, home, shares)
        if load_i64(row + BARRIER) != 0:
            verdict = barrier(control, threads)
            if verdict != 0:
                return verdict
        row = following
        tickets += shares * WORD
    return 0


@njit
def run(control, rows, n_rows, tickets, cancel):
    """One pass by the calling thread and all workers; the last row must have a barrier."""
    for i in range(n_rows * shares_of(control)):
        store_i64(tickets + i * WORD, 0)
    store_i64(control + ROWS, rows)
    store_i64(control + N_ROWS, n_rows)
    store_i64(control + TICKETS, tickets)
    store_i64(control + CANCEL_AT, cancel)
    store_i64(control + FAILED, 0)
    atomic_add(control + EPOCH, 1)
    if atomic_load(control + PARKED) != 0:
        unpark(control + EPOCH)
    return walk(control, 0)


@njit
def serve(control, seen, index):
    """Worker `index`, from 1 on: join every pass after epoch `seen`, until told to stop."""
    while True:
        wait_or_park(control + EPOCH, seen, control + PARKED)
        seen = atomic_load(control + EPOCH)
        if atomic_load(control + STOP) != 0:
            return 0
        walk(control, index)


@njit
def stop(control):
    """Send the workers home."""
    atomic_store(control + STOP, 1)
    atomic_add(control + EPOCH, 1)
    unpark(control + EPOCH)
    return 0


EXPORTS = {"run": run, "serve": serve, "stop": stop}
