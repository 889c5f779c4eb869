"""The vocabulary: every Transformer op as one Python function, its NumPy reference beside it.

An op takes its outputs first, then inputs, then scalars, and last `items`, the range of independent
pieces of work that this call does. Its annotations are its signature: `x: f32[rows, n]` is a
C-contiguous array of that dtype and shape, `eps: f32` a scalar, `read: function` a function that a
variant of the op binds, `items: rows` how many items there are. A dtype that is none of
`signature.DTYPES` (`kv`) is bound by the variant too.
"""
