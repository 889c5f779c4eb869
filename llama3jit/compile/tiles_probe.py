"""Uses tile registers (AMX) once. Run as a process of its own, which may die of it."""

import ctypes
import mmap
import platform
import sys

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18  # Linux on x86-64

# ldtilecfg [rdi]; tilezero tmm0, tmm1, tmm2; tdpbssd tmm0, tmm1, tmm2; tilerelease; ret
CODE = "c4e2784907 c4e27b49c0 c4e27b49c8 c4e27b49d0 c4e26b5ec1 c4e27849c0 c3"
# Palette 1; three tiles of 64 bytes in a row (from byte 16 on) and 16 rows (from byte 48 on).
CONFIG = bytes([1, *[0] * 15, *[64, 0] * 3, *[0] * 26, *[16] * 3, *[0] * 13])


def permitted() -> bool:
    """Ask Linux for tile registers for this process and all its threads."""
    if platform.machine() not in ("x86_64", "amd64"):
        return False
    system = ctypes.CDLL(None)
    return bool(system.syscall(ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0)


def main() -> None:
    """Multiply zeros."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not permitted():
        sys.exit(1)
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(bytes.fromhex(CODE))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.CFUNCTYPE(None, ctypes.c_char_p)(address)(CONFIG)


if __name__ == "__main__":
    main()
