"""A terminal of a user, in which a test runs a command of ours: it types, resizes the window, and reads the screen."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

WAIT_S = 60

_IN_THE_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, "
    "[sys.executable, '-m', 'sandboxd', *sys.argv[1:]])"
)


class LocalTerminal:
    """Runs `sandboxd` with these words in a terminal of its own."""

    def __init__(self, *words: str, env: Mapping[str, str], rows: int = 24, columns: int = 80) -> None:
        self._keyboard, terminal = os.openpty()
        self.resize(rows, columns)
        self.modes: list[Any] = termios.tcgetattr(self._keyboard)
        self._terminal = terminal
        self.screen = b""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _IN_THE_TERMINAL, *words],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm", **env},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self.hang_up()

    def type(self, keys: bytes) -> None:
        os.write(self._keyboard, keys)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, text: bytes) -> bytes:
        """Read the screen until it shows a text; return everything up to it, and forget it."""
        deadline = time.monotonic() + WAIT_S
        while text not in self.screen:
            readable, _, _ = select.select([self._keyboard], [], [], max(0, deadline - time.monotonic()))
            assert readable, f"the terminal does not show {text!r}, but {self.screen[-2000:]!r}"
            self.screen += os.read(self._keyboard, 65_536)
        seen, _, self.screen = self.screen.partition(text)
        return seen + text

    def is_restored(self) -> bool:
        """Return whether the terminal's modes are as they were before the command."""
        return termios.tcgetattr(self._keyboard) == self.modes

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does."""
        for fd in (self._keyboard, self._terminal):
            if fd >= 0:
                os.close(fd)
        self._keyboard = self._terminal = -1

    def wait(self) -> int:
        """Return the command's exit code."""
        return self._process.wait(WAIT_S)
