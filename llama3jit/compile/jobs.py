"""What the processes that build code have in common: what they are asked for, and how they end."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence

from llama3jit.compile import sources
from llama3jit.compile.targets import AnyTarget
from llama3jit.compile.units import Unit, unit_named
from llama3jit.errors import CompileError


def do_jobs(
    arguments: Sequence[str],
    target: AnyTarget,
    build: Callable[[Unit], bytes],
    store: Callable[[str, bytes], None],
) -> int:
    """Build and store each MODULE:OP:VARIANT=KEY=FILE, and say so on stdout; returns how many
    failed. Ends the process when its standard input ends, which its parent holds open."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    failures = 0
    for argument in arguments:
        name, key, path = argument.split("=", 2)
        unit = unit_named(name)
        try:
            code = build(unit)
            check_sources(unit, target, key)
            store(path, code)
        except Exception as error:
            if isinstance(error, (OSError, CompileError)):
                print(error, file=sys.stderr)  # the message says all
            else:
                traceback.print_exc()
            print(f"failed {name}", flush=True)
            failures += 1
            continue
        print(f"built {name}", flush=True)
    return failures


def _end_with_parent() -> None:
    os.read(0, 1)  # not by sys.stdin, whose lock would be held when the process ends
    os._exit(1)


def check_sources(unit: Unit, target: AnyTarget, key: str) -> None:
    """Raise CompileError unless the unit's sources, as they are now, have this key."""
    for cached in (sources.content, sources.reached, sources.closure):
        cached.cache_clear()
    if sources.source_key(unit, target) != key:
        raise CompileError("its source was edited while it was compiled; run it again")
