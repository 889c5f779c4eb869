"""What Linux control groups allow this process: processor time and memory, of version 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def folders(controller: str, root: Path, membership: Path) -> Iterator[tuple[int, Path]]:
    """(version, folder) of the process's group for a controller, and of all its ancestors."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        _, controllers, path = parts
        if controllers == "":
            version, base = 2, root
        elif controller in controllers.split(","):
            version, base = 1, root / controllers
            if not base.is_dir():
                base = root / controller
        else:
            continue
        # Inside a container the path may be that of the host, of which only the root is mounted.
        folder = base / path.lstrip("/")
        while True:
            yield version, folder
            if folder in (base, folder.parent):
                break
            folder = folder.parent


def cpu_quota(root: Path = ROOT, membership: Path = MEMBERSHIP) -> float | None:
    """Processors' worth of time, the smallest limit of all ancestors; None without a limit."""
    quotas = []
    for version, folder in folders("cpu", root, membership):
        try:
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if quota != "max" and int(quota) > 0:
                quotas.append(int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(quotas, default=None)


def memory_left(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int | None:
    """Bytes below the smallest limit of all ancestors; None without a limit. Pages of files count
    as used until they are reclaimed, so those are added back."""
    names = {
        2: ("memory.max", "memory.current", "inactive_file"),
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }
    left = []
    for version, folder in folders("memory", root, membership):
        limit_name, usage_name, reclaimable_name = names[version]
        try:
            limit = (folder / limit_name).read_text().strip()
            if limit == "max" or int(limit) >= 2**60:
                continue
            usage = int((folder / usage_name).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            left.append(int(limit) - usage + int(stat.get(reclaimable_name, 0)))
        except (OSError, ValueError):
            continue
    return min(left, default=None)
