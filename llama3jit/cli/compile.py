"""`llama3jit compile`: kernels ahead of time, for this machine or for shipping."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from llama3jit.cli.options import option

Targets = Annotated[
    list[str] | None,
    option(
        "--target",
        metavar="NAME",
        help="A processor level, native, all (levels), a GPU architecture (sm_90a), cuda (all of "
        "those); may be repeated. [default: this machine's]",
    ),
]
Out = Annotated[
    Path | None,
    option(
        "--out",
        metavar="FOLDER",
        help="Write shared libraries and a manifest there, for shipping. [default: the cache]",
    ),
]


def compile(target: Targets = None, out: Out = None) -> None:
    """Compile all kernels now, so that nothing is compiled later."""
    from llama3jit.cli.loading import Progress
    from llama3jit.compile import shipping
    from llama3jit.errors import InvalidArgumentError

    targets = shipping.targets_by_name(target or [])
    if out is None and len(targets) > 1:
        raise InvalidArgumentError("several targets need --out FOLDER: the cache is this machine's")
    shown = Progress()
    try:
        if out is None:
            print(shipping.fill_cache(targets[0], shown))
        else:
            print(shipping.build_artifact(out, targets, shown))
    finally:
        shown.clear()
