"""Which packages are installed of those that this one declares."""

from __future__ import annotations

import re
import sys

# Extras for those who work on the package itself.
_OWN_EXTRAS = {"test", "wheel"}
_REQUIREMENT = re.compile(r"""([\w.-]+)[^;]*(?:;.*extra == ['"]([\w-]+)['"])?""")


def packages() -> dict[str, str]:
    """Our version, Python's, and those of the packages that a load needs; "none" where missing."""
    from llama3jit.version import __version__

    needed = [name for name, extra in _requirements() if not extra]
    versions = {name: _version(name) for name in needed or ("numpy", "numba", "llvmlite")}
    return {"llama3jit": __version__, "python": sys.version.split()[0], **versions}


def extras() -> dict[str, str]:
    """Each optional extra: the versions of its packages, or what is missing."""
    groups: dict[str, dict[str, str]] = {}
    for name, extra in _requirements():
        if extra and extra not in _OWN_EXTRAS and name != "llama3jit":
            groups.setdefault(extra, {})[name] = _version(name)
    found = {}
    for extra, versions in groups.items():
        missing = [name for name, version in versions.items() if version == "none"]
        there = ", ".join(f"{name} {version}" for name, version in versions.items())
        lacking = f"lacks {', '.join(missing)}: pip install 'llama3jit[{extra}]'"
        found[extra] = lacking if missing else there
    return found


def _requirements() -> list[tuple[str, str]]:
    """(package, extra or "") of all that the installed package declares."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        declared = requires("llama3jit") or []
    except PackageNotFoundError:
        return []
    matches = (_REQUIREMENT.match(line) for line in declared)
    return [(match[1], match[2] or "") for match in matches if match]


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
