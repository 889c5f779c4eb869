"""Methods whose modules are imported when they are first called: most programs never do."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Deferred:
    """A method of a class: the function of that name in a module, whose first argument is the
    object."""

    def __init__(self, module: str, function: str) -> None:
        self.module, self.function = module, function

    def __get__(self, instance: object, owner: type) -> Any:
        found = getattr(import_module(self.module), self.function)
        return found.__get__(instance, owner)
