"""Messages from a terminal, by prompt_toolkit: lines edited, pasted, completed, found again."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.output import create_output

from llama3jit.cli.repl.completion import candidates
from llama3jit.cli.repl.editor import edit
from llama3jit.cli.repl.entry import is_command, is_open
from llama3jit.cli.repl.history import PrivateHistory, history_file
from llama3jit.cli.repl.plain import CONTINUATION, PROMPT
from llama3jit.cli.repl.rendering import say
from llama3jit.cli.streams import one_line
from llama3jit.errors import Llama3JitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document
    from prompt_toolkit.key_binding import KeyPressEvent

MENU_LINES = 4


class TypedInput:
    """Reads messages. `meter()` is the line below what is typed; `keeps_history()` says whether
    what is typed goes to the file."""

    def __init__(self, meter: Callable[[], str], keeps_history: Callable[[], bool]) -> None:
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUATION,
            key_bindings=_keys(),
            completer=_Completer(),
            complete_while_typing=False,
            history=PrivateHistory(history_file(), keeps_history),
            bottom_toolbar=meter,
            reserve_space_for_menu=MENU_LINES,
            enable_suspend=True,
            output=create_output(sys.stdout if sys.stdout.isatty() else sys.stderr),
        )

    def read(self, text: str = "") -> str:
        """A message or a command; `text` stands there first. Raises EOFError for Ctrl-D on an empty
        line, KeyboardInterrupt for Ctrl-C on one; else Ctrl-C empties it."""
        while True:
            try:
                with _kept_handlers():
                    return self._session.prompt(default=text, pre_run=self._end_in_order)
            except KeyboardInterrupt:
                if not self._session.default_buffer.text:
                    raise
                text = ""

    def _end_in_order(self) -> None:
        """While it reads, have SIGTERM and SIGHUP end the prompt, which gives the terminal its
        settings back: an exception in the midst of an event loop would leave them."""
        loop, app = asyncio.get_running_loop(), self._session.app

        def end(number: int) -> None:
            if not app.future or not app.future.done():
                app.exit(exception=SystemExit(128 + number))

        for kind in _endings():
            if callable(signal.getsignal(kind)):
                loop.add_signal_handler(kind, end, kind)


def _endings() -> list[signal.Signals]:
    return [] if sys.platform == "win32" else [signal.SIGTERM, signal.SIGHUP]


@contextmanager
def _kept_handlers() -> Iterator[None]:
    """The event loop takes handlers of signals away when it closes; here they come back."""
    before = {kind: signal.getsignal(kind) for kind in _endings()}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)


class _Completer(Completer):
    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        line = document.text_before_cursor
        start, found = candidates(line)
        for text in found:
            yield Completion(text, start_position=start - len(line))


def _keys() -> KeyBindings:
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def send(event: KeyPressEvent) -> None:
        """Send, unless the message goes on: in an open fence, or after a backslash at its end."""
        buffer = event.current_buffer
        if buffer.document.is_cursor_at_the_end and buffer.text.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        elif is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("tab", filter=typing & ~_at_command)
    def tab(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\t")

    @keys.add("c-x", "c-e", filter=typing)
    @keys.add("c-x", "e", filter=typing)
    @keys.add("c-g", filter=typing)
    async def open_editor(event: KeyPressEvent) -> None:
        buffer: Any = event.current_buffer

        def run() -> None:
            try:
                buffer.text = edit(buffer.text)
                buffer.cursor_position = len(buffer.text)
            except Llama3JitError as error:
                say(f"llama3jit: {one_line(str(error))}")

        await run_in_terminal(run)

    return keys


@Condition
def _at_command() -> bool:
    from prompt_toolkit.application import get_app

    return is_command(get_app().current_buffer.text)
