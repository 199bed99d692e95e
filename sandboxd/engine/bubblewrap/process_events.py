"""Deaths and pauses of the PID 1 of many containers, whichever process started them.

Each PID 1 has a pidfd in one epoll set, and the stream waits on the set, so a death is reported at once. The kernel
reports a stopped child only to its parent, which is bwrap, so processes that are stopped from outside are polled for
once a second. A stream never ends or signals a process.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import anyio
from anyio import to_thread

from sandboxd.engine.bubblewrap.processes import ProcessRef, open_pidfd, read_stat
from sandboxd.engine.protocol import ContainerDied, ContainerPaused, ContainerResumed, EngineEvent, Resynced

PAUSE_LOOK_S = 1.0  # I10: state is true within 2 s


class ProcessEvents:
    """Owns the pidfds of one listener. An async iterator that never ends on its own."""

    def __init__(
        self,
        load: Callable[[], Awaitable[dict[str, ProcessRef | None]]],
        explain: Callable[[str], Awaitable[ContainerDied]],
        is_frozen: Callable[[str], bool],
    ) -> None:
        """`is_frozen` returns whether the kernel has frozen a container that was paused."""
        self._load = load
        self._explain = explain
        self._is_frozen = is_frozen
        self._is_loaded = False
        self._known: set[str] = set()
        self._pidfds: dict[int, str] = {}
        self._lives: dict[str, ProcessRef] = {}
        self._stopped: set[str] = set()
        self._pauses: deque[ContainerPaused | ContainerResumed] = deque()
        self._dead: deque[str] = deque()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)

    def watch(self, container_id: str, life: ProcessRef | None) -> None:
        """Add a container that was alive when this stream began or was launched since."""
        if container_id in self._known:
            return
        self._known.add(container_id)
        os.eventfd_write(self._wake, 1)
        fd = None if life is None else open_pidfd(life)
        if fd is None or life is None:
            self._dead.append(container_id)
            return
        self._pidfds[fd] = container_id
        self._lives[container_id] = life
        self._epoll.register(fd, select.EPOLLIN)

    def note_pause(self, container_id: str) -> None:
        """Record that the engine has reported a container as paused, so that its resumption is reported."""
        if container_id in self._lives:
            self._stopped.add(container_id)

    def report_pause(self, container_id: str, *, is_paused: bool) -> None:
        """Announce that the engine itself has paused or resumed a container."""
        if container_id in self._lives and is_paused != (container_id in self._stopped):
            if is_paused:
                self._stopped.add(container_id)
            else:
                self._stopped.discard(container_id)
            self._pauses.append(ContainerPaused(container_id) if is_paused else ContainerResumed(container_id))
            os.eventfd_write(self._wake, 1)

    def __aiter__(self) -> ProcessEvents:
        return self

    async def __anext__(self) -> EngineEvent:
        if not self._is_loaded:
            for container_id, life in (await self._load()).items():
                self.watch(container_id, life)
            self._is_loaded = True
            return Resynced()
        while not self._dead and not self._pauses:
            with anyio.move_on_after(PAUSE_LOOK_S if self._lives else None) as waiting:
                await anyio.wait_readable(self._epoll.fileno())
            if waiting.cancelled_caught:
                noted = set(self._stopped)
                found = await to_thread.run_sync(self._find_stopped, dict(self._lives), noted)
                if noted == self._stopped:  # otherwise the engine has paused or resumed one in the meantime
                    self._compare(found)
            self._collect()
        if self._pauses:
            return self._pauses.popleft()
        # Read, yield, then remove: a listener that is cancelled in between must not lose a death.
        event = await self._explain(self._dead[0])
        self._known.discard(self._dead.popleft())
        return event

    def _find_stopped(self, lives: Mapping[str, ProcessRef], noted: set[str]) -> set[str]:
        stats = ((container_id, life, read_stat(life.pid)) for container_id, life in lives.items())
        stopped = {container_id for container_id, life, stat in stats if stat and stat.ref == life and stat.is_stopped}
        return stopped | {container_id for container_id in noted - stopped if self._is_frozen(container_id)}

    def _compare(self, stopped: set[str]) -> None:
        stopped &= self._lives.keys()  # one may have died during the check
        self._pauses += [ContainerPaused(container_id) for container_id in stopped - self._stopped]
        self._pauses += [ContainerResumed(container_id) for container_id in self._stopped - stopped]
        self._stopped = stopped

    def _collect(self) -> None:
        for fd, _ in self._epoll.poll(0):
            if fd == self._wake:
                os.eventfd_read(fd)
                continue
            self._epoll.unregister(fd)
            os.close(fd)
            container_id = self._pidfds.pop(fd)
            del self._lives[container_id]
            self._stopped.discard(container_id)
            self._dead.append(container_id)

    def close(self) -> None:
        """Close every descriptor. A stream that is no longer referenced closes itself."""
        if self._epoll.closed:
            return
        self._epoll.close()
        os.close(self._wake)
        for fd in self._pidfds:
            os.close(fd)
        self._pidfds.clear()

    def __del__(self) -> None:
        self.close()
