"""Whether this process may use tile registers (AMX).

Linux hands them out on request (arch_prctl, ARCH_REQ_XCOMP_PERM). Some virtual machines name them
among the processor's features and then fault at the first use, so they are tried once in another
process, and the outcome is kept for this processor under this system.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from contextlib import suppress
from pathlib import Path

from llama3jit.compile.tiles_probe import permitted

FEATURES = frozenset({"amx-int8", "amx-tile"})  # LLVM's names
PROBE = Path(__file__).with_name("tiles_probe.py")
PROBE_S = 10.0
# Of a processor's lines in /proc/cpuinfo, those that say which one it is and what it can do.
TELLING = ("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags")


def usable(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Ask for tile registers, and find out whether they work."""
    if sys.platform != "linux" or not permitted():
        return False
    from llama3jit.compile.cache import user_folder
    from llama3jit.files.whole import write_whole

    path = user_folder() / f"tiles-{_processor(cpuinfo)}"
    with suppress(OSError):
        known = path.read_text()
        if known in ("yes", "no"):
            return known == "yes"
    found = try_them()
    # Where nothing can be kept they are tried at every start.
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, b"yes" if found else b"no")
    return found


def try_them() -> bool:
    """Whether a process that uses tile registers comes to a good end."""
    import subprocess  # not wanted at a start that knows the outcome

    command = [sys.executable, "-I", "-S", str(PROBE)]
    try:
        return subprocess.run(command, capture_output=True, timeout=PROBE_S).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def _processor(cpuinfo: Path) -> str:
    """A name for the first processor under this kernel."""
    lines = [platform.release()]
    with suppress(OSError):
        first = cpuinfo.read_text().partition("\n\n")[0]
        lines += [x for x in first.splitlines() if x.partition(":")[0].strip() in TELLING]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
