"""The listener for one sandbox's runner: the socket and the secret in the sandbox's run directory.

It listens only while no runner is connected; otherwise the kernel refuses an agent's connections, at no cost to the
daemon. It never reads anything that the container could have written: the directory is mounted read-only.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from sandboxd.errors import HostFull, InvalidRequest, SandboxError
from sandboxd.models.command import DEFAULT_MAX_TIMEOUT_S
from sandboxd.permissions import PRIVATE_DIRECTORY, PRIVATE_FILE, make_shared
from sandboxd.runner.client import RunnerClient
from sandboxd.runner.inside import wire
from sandboxd.runner.link import RunnerLink
from sandboxd.runner.protocol import Hello
from sandboxd.runner.secret import publish_secret, withdraw_secret

SOCKET_NAME = "socket"
MAX_UNAUTHENTICATED = 32
"""The most unauthenticated connections. The oldest is closed first, because a real runner greets within a
millisecond."""
BACKLOG = 32


class RunnerListener:
    """Owns a run directory. Open it before a container is launched, or when a running container is adopted."""

    def __init__(
        self,
        run_dir: Path,
        secret: str,
        *,
        uid: int,
        gid: int,
        env: Mapping[str, str] | None = None,
        proxy: int = 0,
        is_adoption: bool = False,
        is_held: bool = False,
        max_timeout_s: float = DEFAULT_MAX_TIMEOUT_S,
    ) -> None:
        self._run_dir = run_dir
        self._secret = secret
        self._uid = uid
        self._gid = gid
        self._is_adoption = is_adoption
        self.is_held = is_held
        """Whether calls are held back until `admit`, even if the runner is connected."""
        self._listening: socket.socket | None = None
        self._unauthenticated: dict[RunnerLink, None] = {}
        self._runner: RunnerLink | None = None
        self._hello: Hello | None = None
        self._is_open = False
        self.client = RunnerClient(env or {}, max_timeout_s, proxy=proxy)

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Listen, and write the secret for a new runner. An adopted one has it, and its agent must not see it."""
        try:
            self._run_dir.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            make_shared(self._run_dir, self._gid)
            if not self._is_adoption:
                publish_secret(self._run_dir, self._secret, self._uid, self._gid)
            self._listen()
        except OSError as error:
            raise HostFull(f"cannot open the run directory of a sandbox: {error.strerror}") from error
        self._is_open = True

    def close(self) -> None:
        """Disconnect the runner and close the socket. It keeps its background processes and waits for a daemon."""
        self._is_open = False
        self._stop_listening()
        for link in [*self._unauthenticated, *([self._runner] if self._runner else [])]:
            link.close("the daemon disconnected it")
        (self._run_dir / SOCKET_NAME).unlink(missing_ok=True)

    def admit(self) -> None:
        """Let calls through to the runner, as soon as it is connected."""
        self.is_held = False
        if self._runner is not None and self._hello is not None:
            self.client.attach(self._runner, self._hello)

    def greeted(self, link: RunnerLink, hello: Hello) -> None:
        self._unauthenticated.pop(link, None)
        withdraw_secret(self._run_dir)
        if hello.problem:
            self.client.fail(InvalidRequest(hello.problem))
            link.close("its image cannot run it")
        elif hello.protocol != wire.VERSION:
            found = f"it speaks protocol {hello.protocol}, not {wire.VERSION}"
            self.client.fail(SandboxError(f"cannot use this runner: {found}"))
            link.close(found)
        else:
            previous, self._runner, self._hello = self._runner, link, hello
            if previous is not None:
                self.client.detach(previous, "another connection took its place")
                previous.close("another connection took its place")
            self._stop_listening()
            if not self.is_held:
                self.client.attach(link, hello)

    def lost(self, link: RunnerLink, reason: str) -> None:
        self._unauthenticated.pop(link, None)
        if link is self._runner:
            self._runner = None
            self.client.detach(link, reason)
            if self._is_open:
                try:
                    self._listen()
                except OSError as error:
                    self.client.fail(HostFull(f"cannot listen for the runner again: {error.strerror}"))

    def received(self, kind: int, call: int, head: bytes, data: bytes) -> None:
        self.client.receive(kind, call, head, data)

    def _listen(self) -> None:
        directory = os.open(self._run_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # by descriptor, because a socket's address is limited to 107 bytes and the data directory's path may be longer
        address = f"/proc/self/fd/{directory}/{SOCKET_NAME}"
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            (self._run_dir / SOCKET_NAME).unlink(missing_ok=True)
            os.fchmod(listening.fileno(), PRIVATE_FILE)  # before bind, so that the socket never has wider permissions
            listening.bind(address)
            if (self._uid, self._gid) != (os.geteuid(), os.getegid()):
                os.chown(address, self._uid, self._gid)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
        finally:
            os.close(directory)
        self._listening = listening
        # an event loop callback, because other callbacks stop and restart listening
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept)

    def _stop_listening(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening.fileno())
            self._listening.close()
            self._listening = None

    def _accept(self) -> None:
        if self._listening is None:
            return
        try:
            connection, _address = self._listening.accept()
        except OSError:
            return  # the client has disconnected, or the daemon is out of descriptors
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            next(iter(self._unauthenticated)).close("too many unauthenticated connections")
        self._unauthenticated[RunnerLink(connection, self, bytes.fromhex(self._secret))] = None
