"""The local end of a process in a sandbox: this terminal's keyboard, window size and screen, and the keys that detach.

It owns the terminal's modes while it is attached, and always restores them. It never ends the process.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum

from sandboxd.client import Terminal
from sandboxd.client.errors import KNOWN_ERRORS
from sandboxd.errors import InvalidRequest

DETACH_KEYS = "ctrl-p,ctrl-q"
_READ_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Ended:
    """The process has ended."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class Detached:
    """The user has detached, or this terminal is gone. The process keeps running."""


class DetachKeys:
    """Finds the sequence of keys that detaches in what is typed, and holds back what may be its beginning."""

    def __init__(self, sequence: bytes) -> None:
        self._sequence = sequence
        self._matched = 0

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """Return what to send, and whether the sequence is complete."""
        send = bytearray()
        for key in typed:
            if self._sequence and key != self._sequence[self._matched]:
                send += self._sequence[: self._matched]
                self._matched = 0
            if self._sequence and key == self._sequence[self._matched]:
                self._matched += 1
                if self._matched == len(self._sequence):
                    return bytes(send), True
            else:
                send.append(key)
        return bytes(send), False


def parse_keys(text: str) -> bytes:
    """Return the bytes of a sequence such as `ctrl-p,ctrl-q` or `ctrl-a,d`; an empty one never matches."""
    keys = bytearray()
    for name in text.split(",") if text else ():
        key = name.removeprefix("ctrl-")
        if len(key) != 1 or not key.isascii() or (name != key and not key.isalpha()):
            raise InvalidRequest(
                f"cannot use these keys to detach: {name!r} is neither one character nor ctrl- with a letter"
            )
        keys.append(ord(key.upper()) & 0x1F if name != key else ord(key))
    return bytes(keys)


def window_size() -> os.terminal_size:
    """Return the size of this terminal. Not shutil's, which prefers what COLUMNS and LINES said at the start."""
    try:
        columns, lines = os.get_terminal_size(sys.stdin.fileno())
    except OSError:
        columns = lines = 0
    return os.terminal_size((columns or 80, lines or 24))  # a terminal that was never sized has 0 by 0


def attach_terminal(terminal: Terminal, detach_keys: bytes) -> Ended | Detached:
    """Connect this terminal to a process in a terminal until it ends or the user detaches."""
    terminal.attach()
    keys = DetachKeys(detach_keys)
    with _raw_mode(), _forwarding(terminal, keys, is_terminal=True):
        return _show(terminal)


def attach_pipes(terminal: Terminal, *, with_stdin: bool) -> Ended | Detached:
    """Show a process without a terminal, and pass on stdin. Ctrl-C detaches."""
    terminal.attach()
    try:
        if not with_stdin:
            return _show(terminal)
        with _forwarding(terminal, DetachKeys(b""), is_terminal=False):
            return _show(terminal)
    except KeyboardInterrupt:
        return Detached()


def _show(terminal: Terminal) -> Ended | Detached:
    screen = sys.stdout.fileno()
    for piece in terminal:
        try:
            while piece:
                piece = piece[os.write(screen, piece) :]
        except OSError:  # this terminal is gone
            return Detached()
    return Detached() if terminal.exit_code is None else Ended(terminal.exit_code)


@contextmanager
def _raw_mode() -> Iterator[None]:
    before = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin, termios.TCSADRAIN)  # the default would discard typed-ahead input
    try:
        yield
    finally:
        with suppress(termios.error, OSError):  # this terminal is gone
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextmanager
def _forwarding(terminal: Terminal, keys: DetachKeys, *, is_terminal: bool) -> Iterator[None]:
    """Send typed input, and the window size when it changes, from a thread until the block ends."""
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)

    def forward() -> None:
        if is_terminal:
            # A terminal that is attached to again may already have this size, and redraws only if the size changes.
            size = window_size()
            terminal.resize(size.lines + 1, size.columns)
            _send_size(terminal)
        for what in _what_happens(sys.stdin.fileno(), wakes):
            if what is _Wake.STOP:
                return
            if what is _Wake.LEAVE:
                terminal.close()
                return
            if what is _Wake.RESIZE:
                _send_size(terminal)
                continue
            send, is_detached = keys.feed(what)
            if send:
                terminal.send(send)
            if is_detached or (not what and is_terminal):
                terminal.close()
                return
            if not what:
                terminal.send_eof()
                return

    thread = threading.Thread(target=_until_error(forward), name="keyboard")
    with ExitStack() as signals:
        if is_terminal:
            signals.enter_context(_on_signal(signal.SIGWINCH, wake, _Wake.RESIZE))
            # A terminal that is closed, or a user who ends this command, does not end the program.
            signals.enter_context(_on_signal(signal.SIGHUP, wake, _Wake.LEAVE))
            signals.enter_context(_on_signal(signal.SIGTERM, wake, _Wake.LEAVE))
        thread.start()
        try:
            yield
        finally:
            _wake_up(wake, _Wake.STOP)
            thread.join()
    os.close(wakes)
    os.close(wake)


class _Wake(Enum):
    RESIZE = b"r"
    LEAVE = b"l"
    STOP = b"s"


def _what_happens(keyboard: int, wakes: int) -> Iterator[bytes | _Wake]:
    """Yield what is typed, empty at its end, and what the keyboard's thread was woken up for."""
    while True:
        readable, _, _ = select.select([keyboard, wakes], [], [])
        if wakes in readable:
            yield _Wake(os.read(wakes, 1))
        else:
            try:
                yield os.read(keyboard, _READ_BYTES)
            except OSError:  # this terminal was closed
                yield b""


def _wake_up(wake: int, why: _Wake) -> None:
    with suppress(BlockingIOError):
        os.write(wake, why.value)


def _until_error(act: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        with suppress(*KNOWN_ERRORS):  # the reader of the output reports it
            act()

    return run


def _send_size(terminal: Terminal) -> None:
    size = window_size()
    terminal.resize(size.lines, size.columns)


@contextmanager
def _on_signal(number: signal.Signals, wake: int, why: _Wake) -> Iterator[None]:
    before = signal.signal(number, lambda _number, _frame: _wake_up(wake, why))
    try:
        yield
    finally:
        signal.signal(number, before)
