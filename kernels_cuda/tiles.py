"""How halves lie on a GPU, of a weight or of activations: tiles of 128 rows by 64 columns, 16 KB
each, along the columns first. A tile has its rows one after another, 128 bytes each; of the eight
pieces of 16 bytes of row r, piece c lies where piece c ^ (r % 8) would (the 128-byte swizzle of the
tensor cores: PTX ISA, "Shared memory matrix layout"). Rows are padded to 128, columns to 64, by
zeros."""

from numba import cuda

device = cuda.jit(device=True)


@device
def piece_at(row, piece, columns):
    """Byte at which piece `piece` (columns 8 * piece to 8 * piece + 7) of a row lies, among rows
    of `columns` tiles."""
    tile = (row >> 7) * columns + (piece >> 3)
    return tile * 16384 + (row & 127) * 128 + ((piece ^ row) & 7) * 16
