"""`llama3jit rm`: delete a local model."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def rm(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that `list` shows.")],
) -> None:
    """Delete a model from the local store."""
    from llama3jit.files.store import default_store

    model = default_store().remove(name)
    print(f"removed {model.name} ({model.size / 1e6:.1f} MB)", file=sys.stderr)
