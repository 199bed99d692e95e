"""Readiness: whether engine, store and disk work, each checked on demand and with a deadline.

A check that hangs is not started again; once it is late, the result is a failure until it returns. Nothing is repaired
here, except that the disk reserve is created again when there is space.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup

from memo.documents import DocumentKey
from memo.errors import MemoError
from sandboxd.engine.protocol import LABEL_INSTANCE
from sandboxd.errors import SandboxdError
from sandboxd.models.health import Check, Readiness
from sandboxd.sandboxes.manager import SandboxManager
from sandboxd.sandboxes.reserve import Reserve

DEADLINE_S = 5.0
_LEAST_FREE_BYTES = 2 * 1024 * 1024
_LEAST_FREE_INODES = 64
_PROBE = ".probe"


class Probe:
    """One check, running at most once at a time. Its task belongs to the daemon and outlives the request."""

    def __init__(
        self,
        name: str,
        look: Callable[[], Awaitable[None]],
        tasks: TaskGroup,
        deadline_s: float,
        recovered: Callable[[], None] | None = None,
    ) -> None:
        """`recovered` is called when a check succeeds after one that failed or was late."""
        self._name = name
        self._look = look
        self._tasks = tasks
        self._deadline_s = deadline_s
        self._recovered = recovered
        self._has_failed = False
        self._done: anyio.Event | None = None
        self._due = 0.0
        self._last = Check(name=name, ok=False)

    async def check(self) -> Check:
        if self._done is None:
            self._done = anyio.Event()
            self._due = anyio.current_time() + self._deadline_s
            self._tasks.start_soon(self._run, self._done)
        with anyio.CancelScope(deadline=self._due) as waiting:
            await self._done.wait()
        if waiting.cancelled_caught:
            self._has_failed = True
            return Check(name=self._name, ok=False, detail=f"no answer within {self._deadline_s:g} s")
        return self._last

    async def _run(self, done: anyio.Event) -> None:
        try:
            await self._look()
            self._last = Check(name=self._name, ok=True)
            if self._has_failed and self._recovered is not None:
                self._recovered()
            self._has_failed = False
        except (SandboxdError, MemoError, OSError) as error:
            self._has_failed = True
            self._last = Check(name=self._name, ok=False, detail=str(error))
        finally:
            self._done = None
            done.set()


class ReadinessChecks:
    """`tasks` outlives every request."""

    def __init__(self, manager: SandboxManager, tasks: TaskGroup, *, deadline_s: float = DEADLINE_S) -> None:
        self._manager = manager
        engine = manager.engine.name
        self._engine = Probe(engine, self._look_at_engine, tasks, deadline_s, recovered=manager.engine_returned)
        self._store = Probe(public_url(manager.settings.store_url), self._look_at_store, tasks, deadline_s)
        self._disk = Probe(str(manager.layout.data), self._look_at_disk, tasks, deadline_s)

    async def check(self) -> Readiness:
        found: dict[str, Check] = {}

        async def ask(subject: str, probe: Probe) -> None:
            found[subject] = await probe.check()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "engine", self._engine)
            tasks.start_soon(ask, "store", self._store)
            tasks.start_soon(ask, "disk", self._disk)
        store = found["store"] if self._manager.memory else Check(name="none", ok=True, detail="no store is attached")
        return Readiness.of(engine=found["engine"], store=store, disk=found["disk"])

    async def _look_at_engine(self) -> None:
        await self._manager.engine.find({LABEL_INSTANCE: "readiness"})
        if (runtime := self._manager.settings.runtime) is not None:
            await self._manager.engine.find_runtime(runtime)

    async def _look_at_store(self) -> None:
        """Check the store by reading a document that was never written: the store must report it as absent."""
        if self._manager.memory is not None:
            await self._manager.memory.read(DocumentKey.of("readiness", "readiness", "session", "NOTES.md"))

    async def _look_at_disk(self) -> None:
        layout = self._manager.layout
        await to_thread.run_sync(look_at_disk, layout.data, layout.reserve, abandon_on_cancel=True)


def look_at_disk(data: Path, reserve: Reserve) -> None:
    """Raise OSError unless there is free space, the reserve is held, and a small write reaches the disk."""
    status = os.statvfs(data)
    free_bytes = status.f_bavail * status.f_frsize
    if free_bytes < _LEAST_FREE_BYTES:
        raise OSError(f"only {free_bytes} bytes are free; free some space")
    # A filesystem that allocates inodes on demand reports a total of 0.
    if status.f_files and status.f_favail < _LEAST_FREE_INODES:
        raise OSError(f"only {status.f_favail} inodes are free; remove some files")
    if not reserve.is_whole and not reserve.fill():
        raise OSError("there is no space for the reserve needed to remove a sandbox; free some space")
    probe = data / _PROBE
    fd = os.open(probe, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b"ready\n")
        os.fsync(fd)
    except OSError as error:
        raise OSError(f"a small write fails: {error.strerror}") from error
    finally:
        os.close(fd)
        probe.unlink(missing_ok=True)


def public_url(url: str) -> str:
    """Return the store's URL without its password. (I12)"""
    parts = urlsplit(url)
    if parts.password is None:
        return url
    return urlunsplit(parts._replace(netloc=f"{parts.username}@{parts.hostname}"))
