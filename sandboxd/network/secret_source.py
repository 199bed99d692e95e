"""Where the secret of a credential comes from: a variable, a file or a command of the daemon's host.

A Secret shows its value only to code that asks for it by name. Nothing here logs, and no error contains what was read.
"""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Final

import anyio
import anyio.to_thread

from sandboxd.errors import CredentialUnavailable
from sandboxd.network_settings import CredentialOptions
from sandboxd.permissions import is_readable_by_others

MAX_SECRET_BYTES: Final = 16 * 1024
MIN_SECRET_CHARS: Final = 8
"""A shorter secret cannot be redacted: its characters are part of ordinary words and numbers."""
_COMMAND_TIMEOUT_S: Final = 20.0
_FAILURE_TTL_S: Final = 5.0

ReadSecret = Callable[[], Awaitable["Secret"]]


class Secret:
    """A value that no representation shows."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> str:
        raise TypeError("cannot copy or store a secret")


def source_of(name: str, options: CredentialOptions) -> ReadSecret:
    """Return the function that reads the secret of the credential with this name."""
    if options.variable:
        return _Variable(name, options.variable)
    if options.file:
        return _File(name, options.file)
    return _Command(name, tuple(options.command), options.command_ttl_s)


class _Variable:
    def __init__(self, name: str, variable: str) -> None:
        self._name, self._variable = name, variable

    async def __call__(self) -> Secret:
        value = os.environb.get(self._variable.encode())
        if value is None:
            raise _unavailable(self._name, f"the daemon's environment has no variable {self._variable}; set it")
        return _parse(self._name, value)


class _File:
    """A secret in a file, read again when the file has changed."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._known: tuple[tuple[int, ...], Secret] | None = None

    async def __call__(self) -> Secret:
        self._known = await anyio.to_thread.run_sync(self._read)
        return self._known[1]

    def _read(self) -> tuple[tuple[int, ...], Secret]:
        path = self._path
        try:
            # non-blocking, because a FIFO would wait for a writer
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            with open(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise _unavailable(self._name, f"{path} is not a regular file")
                if is_readable_by_others(path):
                    raise _unavailable(self._name, f"every user of this host can read {path}; run `chmod 600 {path}`")
                version = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
                if self._known and self._known[0] == version:
                    return self._known
                return version, _parse(self._name, file.read(MAX_SECRET_BYTES + 3))
        except OSError as error:
            raise _unavailable(self._name, f"{path} cannot be read: {error.strerror or error}") from None


class _Command:
    """What a command prints, used for a while. It runs once at a time, however many requests wait for it."""

    def __init__(self, name: str, command: tuple[str, ...], ttl_s: float) -> None:
        self._name, self._command, self._ttl_s = name, command, ttl_s
        self._lock = anyio.Lock()
        self._known: Secret | CredentialUnavailable | None = None
        self._known_until = 0.0

    async def __call__(self) -> Secret:
        async with self._lock:
            if self._known is None or time.monotonic() >= self._known_until:
                try:
                    self._known, ttl_s = _parse(self._name, await self._run()), self._ttl_s
                except CredentialUnavailable as error:
                    # kept too: each of many waiting requests would otherwise run it again, one after another
                    self._known, ttl_s = error, min(self._ttl_s, _FAILURE_TTL_S)
                self._known_until = time.monotonic() + ttl_s
        if isinstance(self._known, Secret):
            return self._known
        raise CredentialUnavailable(str(self._known))

    async def _run(self) -> bytes:
        program = self._command[0]
        try:
            process = await anyio.open_process(
                self._command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise _unavailable(self._name, f"{program} cannot be started: {error.strerror or error}") from None
        output = b""
        async with process:
            try:
                with anyio.fail_after(_COMMAND_TIMEOUT_S):
                    assert process.stdout is not None  # noqa: S101, for the type checker: it is a pipe
                    async for part in process.stdout:
                        output += part
                        if len(output) > MAX_SECRET_BYTES + 2:
                            raise _unavailable(self._name, _TOO_LONG)
                    status = await process.wait()
            except TimeoutError:
                reason = f"{program} did not end within {_COMMAND_TIMEOUT_S:g} s"
                raise _unavailable(self._name, reason) from None
            finally:
                if process.returncode is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)  # it leads its group: what it started ends with it
        if status:
            raise _unavailable(
                self._name, f"{program} ended with status {status}; run it as the daemon's user to see why"
            )
        return output


_TOO_LONG = f"it is longer than {MAX_SECRET_BYTES} bytes"


def _parse(name: str, value: bytes) -> Secret:
    value = value.removesuffix(b"\n").removesuffix(b"\r")
    if not value:
        raise _unavailable(name, "it is empty")
    if len(value) > MAX_SECRET_BYTES:
        raise _unavailable(name, _TOO_LONG)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise _unavailable(name, "it is not UTF-8 text") from None
    if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text):
        raise _unavailable(name, "it contains a line break or another control character")
    if text != text.strip():
        raise _unavailable(name, "it begins or ends with a space")
    if len(text) < MIN_SECRET_CHARS:
        reason = f"it has fewer than {MIN_SECRET_CHARS} characters, too few to redact it from answers"
        raise _unavailable(name, reason)
    return Secret(text)


def _unavailable(name: str, reason: str) -> CredentialUnavailable:
    return CredentialUnavailable(f"cannot use the secret of credential {name}: {reason}")
