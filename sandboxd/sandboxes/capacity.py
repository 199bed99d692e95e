"""How many sandboxes this daemon can run, and whether there is room for one more.

It counts and refuses; it starts and removes nothing, except a warm sandbox that makes room for a caller's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import structlog

from sandboxd.descriptors import carried_sandboxes, soft_open_files
from sandboxd.errors import HostFull, LimitReached
from sandboxd.sandboxes.lifecycle import RESTING
from sandboxd.sandboxes.pool import Pool
from sandboxd.sandboxes.reserve import Reserve
from sandboxd.sandboxes.sandbox import Sandbox
from sandboxd.settings import Settings

_log = structlog.get_logger()


class Capacity:
    """`sandboxes` returns those that have an owner."""

    def __init__(self, settings: Settings, reserve: Reserve, sandboxes: Callable[[], Iterable[Sandbox]]) -> None:
        self._settings = settings
        self._reserve = reserve
        self._sandboxes = sandboxes
        self._carried = sys.maxsize
        """How many sandboxes the limit on open files allows, including those of the pool; known once it is open."""

    def open(self, engine: str) -> None:
        """Find out how many sandboxes on this engine the limit on open files allows."""
        settings = self._settings
        self._carried = carried_sandboxes(soft_open_files(), settings.wire, engine, has_tcp=settings.tcp is not None)
        if self._carried < settings.max_sandboxes:
            _log.warning("the limit on open files carries fewer sandboxes than max_sandboxes", carried=self._carried)

    def running(self) -> int:
        """Return how many sandboxes have a container. One without takes only disk space."""
        return sum(sandbox.record.state not in RESTING for sandbox in self._sandboxes())

    def spare(self, pool: Pool) -> int:
        """Return how many more containers the limit on open files allows."""
        return self._carried - self.running() - len(pool)

    def check(self, count: int = 1) -> None:
        """Refuse this many more containers if the disk is full or a limit is reached."""
        if not self._reserve.has_room():
            raise HostFull("cannot start this sandbox: the disk of the data directory is full; free some space")
        running = self.running()
        more = "another sandbox" if count == 1 else f"{count} more sandboxes"
        if running + count > self._carried:
            raise LimitReached(
                f"cannot start {more}: the limit of {soft_open_files()} open files allows {self._carried}; "
                "start the daemon with a higher one (`ulimit -n`, LimitNOFILE=), or hibernate a sandbox"
            )
        if running + count > self._settings.max_sandboxes:
            most = self._settings.max_sandboxes
            seen = (
                f"{most} are running, which is the limit" if count == 1 else f"{running} of at most {most} are running"
            )
            raise LimitReached(
                f"cannot start {more}: {seen}; raise max_sandboxes, or hibernate a sandbox, which keeps its files"
            )

    def claim(self, pool: Pool, count: int = 1) -> None:
        """Check that there is room for this many containers, and make it if warm ones are in the way."""
        self.check(count)
        self.make_room(pool, count)

    def make_room(self, pool: Pool, count: int = 1) -> None:
        """Retire warm sandboxes to make room for this many of callers, if the daemon cannot have both."""
        for _ in range(min(count, count - self.spare(pool))):
            pool.give_way()
