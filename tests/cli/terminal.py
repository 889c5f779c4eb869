"""A process on a pseudo-terminal, and who sits before it: types, and waits for what is shown."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

from test_generate_and_score import start

PATIENCE_S = 60.0
READY = "\x1b[?2004h"  # bracketed paste is switched on: a prompt reads
WHERE = "\x1b[6n"  # asks for the cursor's position
ESCAPES = re.compile(r"\x1b(\[[0-9;?>]*[A-Za-z]|[=>]|\][^\x07]*\x07)")


class Terminal:
    """`term`: the variable TERM. Answers when asked where the cursor is, as terminals do."""

    def __init__(
        self,
        script,
        before="None",
        *,
        load="None",
        term="xterm",
        columns=80,
        stdout=None,
        **variables,
    ):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.first = termios.tcgetattr(slave)
        self.process = start(
            ["chat", "m"],
            script,
            before,
            load,
            environment={"TERM": term, "COLUMNS": "", "NO_COLOR": "", **variables},
            stdin=slave,
            stdout=stdout or slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        self.slave = slave
        self.seen = ""
        self.all = ""
        self._asked = 0

    def type(self, text):
        """Keys; \\r is Enter."""
        os.write(self.master, text.encode())

    def paste(self, text):
        """As terminals paste where bracketed paste is on."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    def interrupt(self):
        """Ctrl-C."""
        self.type("\x03")

    def prompt(self):
        """Wait until it reads; gives what was shown before."""
        return self.expect(READY)

    def expect(self, text):
        """Wait for what is shown; gives what was before it, and goes on after it."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            ended = self.process.poll() is not None
            if not select.select([self.master], [], [], 0 if ended else 0.2)[0]:
                late = ended or time.monotonic() > deadline
                assert not late, f"{text!r} did not come: {self.seen[-2000:]!r}"
                continue
            new = os.read(self.master, 4096).decode(errors="replace")
            self.seen += new
            self.all += new
            for _ in range(self.all.count(WHERE) - self._asked):
                self._asked += 1
                self.type("\x1b[1;1R")
        before, self.seen = self.seen.split(text, 1)
        return before

    def run(self, line):
        """Type a line at the prompt and wait for the next; gives what was shown, no escapes."""
        self.type(f"{line}\r")
        return ESCAPES.sub("", self.prompt()).replace("\r", "")

    def leave(self):
        """Ctrl-D; gives the exit status."""
        self.type("\x04")
        return self.status()

    def status(self):
        """The exit status, with all output read."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            if select.select([self.master], [], [], 0 if ended else 0.1)[0]:
                new = os.read(self.master, 4096).decode(errors="replace")
                self.seen += new
                self.all += new
            elif ended:
                break
        return self.process.wait(timeout=1)

    def is_as_first(self):
        """Whether the terminal has the settings that it had before the process."""
        return termios.tcgetattr(self.slave) == self.first

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


def _take_terminal():
    """In the child: the terminal is its own, so that Ctrl-C reaches it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
