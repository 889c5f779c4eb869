"""The command line: a file a command. stdout carries only the result, all else goes to stderr."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; an error is one line on stderr and an exit status, no traceback."""
    from llama3jit.cli.interrupts import leaving_at_once

    with leaving_at_once():
        from llama3jit.cli.app import build, run
        from llama3jit.cli.streams import open_closed, warn_in_a_line

        open_closed()
        warn_in_a_line()
        app = build(sys.argv[1] if len(sys.argv) > 1 else None)
    sys.exit(run(sys.argv[1:], app))
