"""GPU kernels: PTX intrinsics, for the portable ops and for tuned ones."""
