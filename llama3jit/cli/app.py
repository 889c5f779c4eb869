"""The typer app: which commands there are, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module

import typer

from llama3jit.errors import Llama3JitError

# Command name -> module in llama3jit.cli; the function in it has the module's name.
COMMANDS = {
    "chat": "chat",
    "generate": "generate",
    "pull": "pull",
    "list": "list_models",
    "rm": "rm",
    "inspect": "inspect",
    "plan": "plan",
    "tokenize": "tokenize",
    "score": "score",
    "bench": "bench",
}


def build(only: str | None = None) -> typer.Typer:
    """The app; with `only`, a known command's name, nothing but that command is imported."""
    app = typer.Typer(
        name="llama3jit",
        help="Run Llama-family GGUF models on this machine.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(version_option)
    for name, module in COMMANDS.items():
        if only in COMMANDS and name != only:
            continue
        command: Callable[..., None] = getattr(import_module(f"llama3jit.cli.{module}"), module)
        app.command(name)(command)
    return app


def show_version(wanted: bool) -> None:
    """Print the version and leave."""
    if wanted:
        from llama3jit.version import __version__

        print(f"llama3jit {__version__}")
        raise typer.Exit


def version_option(
    version: bool = typer.Option(
        False, "--version", callback=show_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Run Llama-family GGUF models on this machine."""


def run(arguments: list[str]) -> int:
    """The exit status of one command line: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    only = next((word for word in arguments if not word.startswith("-")), None)
    try:
        build(only)(args=arguments, prog_name="llama3jit", standalone_mode=True)
    except Llama3JitError as error:
        print(f"llama3jit: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("llama3jit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader went away; point stdout elsewhere so that the flush at exit stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0
