"""Shapes of the products with many tokens on sm_90.

A block takes a tile of rows of the weight by a tile of tokens. Its groups of four warps share the
tile's rows, 64 each, or, where there are few tokens and so few tiles, the columns of 64 rows. Each
warp has a ring of pieces of the weight (`rings`); a ring of activations, 64 columns of a tile of
tokens in each place, is the block's. All offsets are bytes.
"""

from __future__ import annotations

BARRIERS = 2048
ROWS = 64  # of a group of four warps
MOST = 226 * 1024  # bytes of dynamic shared memory that a block may take; some are static
# Tokens of a tile -> places of the ring of activations, places of a warp's ring at most, groups of
# four warps, and whether these share the columns of 64 rows.
TILES = {
    16: (16, 4, 4, True),
    32: (16, 4, 4, True),
    64: (16, 2, 4, True),
    128: (4, 3, 2, False),
    256: (4, 2, 2, False),
}


def shared_bytes(tokens, piece, pieces):
    stages, _, groups, _ = TILES[tokens]
    rings = groups * 4 * pieces * piece
    activations = stages * tokens * 128
    return BARRIERS + activations + rings + 1024


def pieces_of(tokens, piece):
    """Places of a warp's ring for pieces of so many bytes, as many as there is room for; 0 where
    there is none for two."""
    most = TILES[tokens][1]
    fitting = [n for n in range(2, most + 1) if shared_bytes(tokens, piece, n) <= MOST]
    return max(fitting, default=0)


def piece_bytes(name):
    """Bytes of a piece of a format."""
    from kernels_cuda.layouts import STEPS

    return STEPS[name].total_bytes if name in STEPS else 2048


def tile_of(tokens, n, processors, piece):
    """Tokens of a tile for so many tokens and rows: the tile that the fewest rounds of blocks need,
    counted in products, of those that fit."""
    for size in (16, 32, 64):
        if tokens <= size and pieces_of(size, piece):
            return size
    costs = {}
    for size in (256, 128):
        blocks = -(-tokens // size) * -(-n // (2 * ROWS))
        # A smaller tile has to wait more often.
        costs[-(-blocks // processors) * size * (1.0 if size == 256 else 1.1)] = size
    return costs[min(costs)]


def launch(op, variant, dims):
    from kernels_cuda import Launch

    if op == "halve":
        pieces = dims["size"] // 8
        return Launch((-(-pieces // 256), 1, 1), (256, 1, 1))
    name, _, tokens = variant.partition(":")
    tokens = int(tokens)
    piece = piece_bytes(name)
    _, _, groups, shares = TILES[tokens]
    rows = ROWS if shares else groups * ROWS
    grid = (-(-dims["T"] // tokens), -(-dims["N"] // rows), 1)
    return Launch(grid, (128 * groups, 1, 1), shared_bytes(tokens, piece, pieces_of(tokens, piece)))


def kernel(op, variant):
    if op == "halve":
        from kernels_cuda.halving import make

        return make(variant)
    from kernels_cuda.wide_products import make

    name, _, tokens = variant.partition(":")
    return make(name, int(tokens))


def variant_of(variant, dims, processors):
    return f"{variant}:{tile_of(dims['T'], dims['N'], processors, piece_bytes(variant))}"
