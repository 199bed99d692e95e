"""A stream of deaths: waits for many processes at once, whoever started them.

Each container's PID 1 has a pidfd in one epoll set, and the set is itself waited for; so nothing polls and no
task is needed for a container. A stream never ends or signals a process.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Awaitable, Callable

import anyio

from sandboxd.engine.bubblewrap.processes import ProcessRef, open_pidfd
from sandboxd.engine.protocol import ContainerDied, EngineEvent, Resynced


class Deaths:
    """Owns the pidfds of one listener. An async iterator that never ends by itself."""

    def __init__(
        self,
        load: Callable[[], Awaitable[dict[str, ProcessRef | None]]],
        explain: Callable[[str], Awaitable[ContainerDied]],
    ) -> None:
        self._load = load
        self._explain = explain
        self._is_loaded = False
        self._known: set[str] = set()
        self._pidfds: dict[int, str] = {}
        self._dead: deque[str] = deque()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)

    def watch(self, container_id: str, life: ProcessRef | None) -> None:
        """Add a container that was alive when this stream began or was launched since."""
        if container_id in self._known:
            return
        self._known.add(container_id)
        fd = None if life is None else open_pidfd(life)
        if fd is None:
            self._dead.append(container_id)
            os.eventfd_write(self._wake, 1)
            return
        self._pidfds[fd] = container_id
        self._epoll.register(fd, select.EPOLLIN)

    def __aiter__(self) -> Deaths:
        return self

    async def __anext__(self) -> EngineEvent:
        if not self._is_loaded:
            for container_id, life in (await self._load()).items():
                self.watch(container_id, life)
            self._is_loaded = True
            return Resynced()
        while not self._dead:
            await anyio.wait_readable(self._epoll.fileno())
            self._collect()
        # Looked at, told, then taken: a listener that is cancelled in between must not lose a death.
        event = await self._explain(self._dead[0])
        self._known.discard(self._dead.popleft())
        return event

    def _collect(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if fd == self._wake:
                os.eventfd_read(fd)
                continue
            self._epoll.unregister(fd)
            os.close(fd)
            self._dead.append(self._pidfds.pop(fd))

    def close(self) -> None:
        """Let go of every descriptor. A stream that nobody holds any more closes itself."""
        if self._epoll.closed:
            return
        self._epoll.close()
        os.close(self._wake)
        for fd in self._pidfds:
            os.close(fd)
        self._pidfds.clear()

    def __del__(self) -> None:
        self.close()
