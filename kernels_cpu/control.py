"""What the walker and those who call it agree on: its functions, and its control block.

The block is an array of words, one cache line for each that is written while others read. Nothing
is imported here, so that loading compiled code can use it.
"""

WORD = 8
LINE = 64

# What the walker's object exports: functions of so many int64 that return an int64.
EXPORTS = {"run": 5, "serve": 2, "stop": 1}

# Offsets in the control block.
EPOCH = 0 * LINE
ROWS = 1 * LINE  # the address of the rows, how many there are, the address of their tickets
N_ROWS = ROWS + 1 * WORD
TICKETS = ROWS + 2 * WORD
THREADS = ROWS + 3 * WORD
CANCEL_AT = ROWS + 4 * WORD  # the address of a word that is not 0 when the pass is to end
ARRIVED = 2 * LINE
GENERATION = 3 * LINE
FAILED = 4 * LINE
VERDICT = 5 * LINE
PARKED = 6 * LINE
STOP = 7 * LINE
CONTROL_BYTES = 8 * LINE

CANCELLED = 2**32  # what `run` returns; an op fails with a status of 32 bits
