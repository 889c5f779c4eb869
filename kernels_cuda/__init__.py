"""GPU kernels: PTX intrinsics, for the portable ops and for tuned ones."""

# Op -> the module that holds its tuned kernel, and the variants that it has there.
TUNED: dict[str, tuple[str, tuple[str, ...]]] = {}
