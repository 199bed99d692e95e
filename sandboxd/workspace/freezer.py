"""Freezes a mounted workspace for a moment, so that its image can be copied as one consistent state.

A filesystem that stays frozen hangs every process that writes to it, so a process of its own thaws it even if this one
dies, and `thaw_all` at the next start even if both died. It opens only the root of a mount, which is the daemon's own
path. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from sandboxd.workspace import freeze_guard

_GRACE_S = 10.0
"""How long the guard may take to start, and to thaw."""
_libc = ctypes.CDLL(None, use_errno=True)


class FreezeError(OSError):
    """The filesystem was not frozen for the whole time, so a copy of it may be torn."""


class Freeze:
    """One frozen filesystem. `end` must follow `begin` whatever happens, and may be called twice."""

    def __init__(self, files: Path, limit_s: float) -> None:
        self._limit_s = limit_s
        self._directory = _open_root(files)
        self._guard: subprocess.Popen[bytes] | None = None
        self._was_asked = self._is_confirmed = False

    def begin(self) -> None:
        self._guard = _start_guard(self._directory, self._limit_s)
        # Before the freeze, so that the freeze itself has little left to write; the guard starts meanwhile.
        if _libc.syncfs(self._directory) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._was_asked = True
        _let_freeze(self._guard)
        said = _hear(self._guard, self._limit_s + _GRACE_S)
        if said.startswith(freeze_guard.FAILED):
            _wait(self._guard)
            self._guard = None
            number = int(said.removeprefix(freeze_guard.FAILED))
            raise OSError(number, os.strerror(number))
        if said != freeze_guard.FROZEN:
            raise FreezeError(errno.EIO, "its filesystem could not be frozen")
        self._is_confirmed = True

    def end(self) -> None:
        """Thaw. Raise FreezeError if the filesystem was frozen, but not until now."""
        guard, self._guard = self._guard, None
        directory, self._directory = self._directory, -1
        if directory < 0:
            return
        try:
            if guard is not None:
                verdict = _wait(guard)
                if self._was_asked:
                    freeze_guard.thaw(directory)  # in case the guard was killed
                if self._is_confirmed:
                    self._judge(verdict)
        finally:
            os.close(directory)

    def _judge(self, verdict: str) -> None:
        if verdict == freeze_guard.LATE:
            raise FreezeError(errno.ETIMEDOUT, f"it took longer than {self._limit_s:g} s")
        if verdict != freeze_guard.THAWED:
            raise FreezeError(errno.EIO, "its filesystem was thawed from outside")


def _start_guard(directory: int, limit_s: float) -> subprocess.Popen[bytes]:
    """Start the process that freezes and thaws. It inherits the blocked signals, so only its pipe and its time limit
    end it, whatever ends the daemon.
    """
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", freeze_guard.__file__, str(directory), str(limit_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(directory,),
            start_new_session=True,
            cwd="/",
            env={},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _let_freeze(guard: subprocess.Popen[bytes]) -> None:
    if guard.stdin is not None:
        with contextlib.suppress(OSError):  # it is dead, and will say nothing
            os.write(guard.stdin.fileno(), b"\n")


def _hear(guard: subprocess.Popen[bytes], timeout_s: float) -> str:
    """Return the next line of the guard; empty if there is none in time."""
    if guard.stdout is None:
        return ""
    poll = select.poll()  # not select: a busy daemon has descriptors above 1024
    poll.register(guard.stdout, select.POLLIN)
    return os.read(guard.stdout.fileno(), 64).decode().strip() if poll.poll(timeout_s * 1000) else ""


def _wait(guard: subprocess.Popen[bytes]) -> str:
    """Let the guard thaw and end; return the last line that it wrote."""
    with contextlib.ExitStack() as pipes:
        for pipe in filter(None, (guard.stdin, guard.stdout)):
            pipes.callback(pipe.close)
        if guard.stdin is not None:
            guard.stdin.close()
        said = _hear(guard, _GRACE_S)
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.wait(_GRACE_S)
    return said


def thaw_all(mounts: Iterable[Path]) -> int:
    """Thaw every filesystem among these mounts that is frozen; return how many were."""
    count = 0
    for files in mounts:
        directory = _open_root(files)
        try:
            count += freeze_guard.thaw(directory)
        finally:
            os.close(directory)
    return count


def _open_root(files: Path) -> int:
    return os.open(files, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
