"""The typer app: which commands there are, and what becomes of errors."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import typer

from llama3jit.cli.help import GroupedCommand
from llama3jit.cli.streams import one_line
from llama3jit.errors import Llama3JitError

if TYPE_CHECKING:
    from collections.abc import Callable

# Command name -> module in llama3jit.cli; the function in it has the module's name.
COMMANDS = {
    "chat": "chat",
    "generate": "generate",
    "batch": "batch",
    "pull": "pull",
    "list": "list_models",
    "rm": "rm",
    "inspect": "inspect",
    "plan": "plan",
    "tokenize": "tokenize",
    "score": "score",
    "bench": "bench",
    "compare": "compare",
    "profile": "profile",
    "compile": "compile",
    "doctor": "doctor",
}

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def build(only: str | None = None) -> typer.Typer:
    """The app; with `only`, a known command's name, no other command is imported."""
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
        app.command(name, cls=GroupedCommand)(command)
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


def run(arguments: list[str], app: typer.Typer | None = None) -> int:
    """The exit status of one command line: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app = app or build(arguments[0] if arguments else None)
        status = app(args=arguments, prog_name="llama3jit", standalone_mode=False)
        sys.stdout.flush()
        if status == INTERRUPTED:  # typer has caught the KeyboardInterrupt
            raise KeyboardInterrupt
        return status if isinstance(status, int) else 0
    except Llama3JitError as error:
        return fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader went away; point stdout elsewhere so that the flush at exit stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except Exception as error:
        return fail_otherwise(error)


def fail(message: str, status: int) -> int:
    """One line on stderr, and the status."""
    from contextlib import suppress

    with suppress(OSError):  # a reader that went away, a full disk
        print(f"llama3jit: {one_line(message)}", file=sys.stderr, flush=True)
    return status


def fail_otherwise(error: Exception) -> int:
    """What is not an error of this package: the parser's, the system's, and our own mistakes,
    whose traceback is shown on request."""
    parser: Any = error
    if isinstance(status := getattr(error, "exit_code", None), int):
        context = getattr(error, "ctx", None)
        message = parser.format_message() if hasattr(error, "format_message") else ""
        if "\n" in message and hasattr(error, "show"):
            parser.show()  # the help, where there are no arguments
        elif message:
            hint = f"; see {context.command_path} --help" if context else ""
            fail(message.rstrip(".") + hint, status)
        return status
    if os.environ.get("LLAMA3JIT_TRACEBACK"):
        raise error
    if isinstance(error, OSError | MemoryError):
        return fail(str(error) or "out of memory", 1)
    hint = "a mistake in llama3jit; LLAMA3JIT_TRACEBACK=1 shows where"
    return fail(f"{type(error).__name__}: {error} ({hint})", 1)
