"""Retention: which workspaces without a container are removed, and why.

`find_due` decides, pure. `Retention` measures, and starts the removal. A workspace that has a container, or whose
sandbox makes a move, is never due. (I14)
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import anyio
import structlog

from sandboxd.errors import SandboxdError
from sandboxd.sandboxes.lifecycle import RESTING, Removal
from sandboxd.sandboxes.sandbox import Sandbox

_log = structlog.get_logger()

_LONGEST_SLEEP_S = 3600.0
"""Running sandboxes make their workspaces larger all the time, and the host's clock may be set."""
_SHORTEST_SLEEP_S = 1.0


@dataclass(frozen=True, slots=True)
class RestingWorkspace:
    """The workspace of a sandbox without a container."""

    id: str
    since: datetime
    size_bytes: int


def find_due(
    resting: Iterable[RestingWorkspace], used_bytes: int, *, now: datetime, retention_s: float, max_bytes: int
) -> list[tuple[str, Removal]]:
    """Return the workspaces to remove, each with the rule that says so. 0 turns a rule off.

    `used_bytes` is the size of all workspaces, including those that have a container.
    """
    due: list[tuple[str, Removal]] = []
    for workspace in sorted(resting, key=lambda workspace: workspace.since):
        if retention_s and (now - workspace.since).total_seconds() >= retention_s:
            due.append((workspace.id, "expired"))
        elif max_bytes and used_bytes > max_bytes:
            due.append((workspace.id, "over_limit"))
        else:
            continue
        used_bytes -= workspace.size_bytes
    return due


class Retention:
    """`measure` takes the ids of the workspaces in use, and returns the size of all in bytes, by their id; `remove`
    begins to remove a sandbox."""

    def __init__(
        self,
        sandboxes: Callable[[], Iterable[Sandbox]],
        *,
        retention_s: float,
        max_bytes: int,
        measure: Callable[[Collection[str]], Awaitable[Mapping[str, int]]],
        remove: Callable[[Sandbox, Removal], object],
    ) -> None:
        self._sandboxes = sandboxes
        self._retention_s = retention_s
        self._max_bytes = max_bytes
        self._measure = measure
        self._remove = remove
        self._changed = anyio.Event()

    def nudge(self) -> None:
        """Look again, because a workspace has lost its container."""
        self._changed.set()

    async def run(self) -> None:
        """Remove what is due, for ever."""
        while True:
            self._changed = anyio.Event()
            try:
                sizes = await self._measure(self._in_use()) if self._max_bytes else {}
            except SandboxdError as error:
                _log.warning("cannot measure the workspaces; it is tried again", error=str(error))
                sizes = {}
            self._remove_due(sizes)
            with anyio.move_on_after(self._next_due_s()):
                await self._changed.wait()

    def _in_use(self) -> set[str]:
        return {sandbox.record.id for sandbox in self._sandboxes()} - {rest.record.id for rest in self._resting()}

    def _resting(self) -> Sequence[Sandbox]:
        found = [sandbox for sandbox in self._sandboxes() if sandbox.settled is None]
        return [sandbox for sandbox in found if sandbox.record.state in RESTING and sandbox.record.resting_since]

    def _remove_due(self, sizes: Mapping[str, int]) -> None:
        by_id = {sandbox.record.id: sandbox for sandbox in self._resting()}
        resting = [
            RestingWorkspace(sandbox_id, sandbox.record.resting_since, sizes.get(sandbox_id, 0))
            for sandbox_id, sandbox in by_id.items()
            if sandbox.record.resting_since is not None
        ]
        due = find_due(
            resting,
            sum(sizes.values()),
            now=datetime.now(UTC),
            retention_s=self._retention_s,
            max_bytes=self._max_bytes,
        )
        for sandbox_id, removal in due:
            self._remove(by_id[sandbox_id], removal)

    def _next_due_s(self) -> float:
        if not self._retention_s:
            return _LONGEST_SLEEP_S
        now = datetime.now(UTC)
        rests = [sandbox.record.resting_since for sandbox in self._resting()]
        ages = [(now - since).total_seconds() for since in rests if since is not None]
        due_s = self._retention_s - max(ages, default=-math.inf)
        return min(max(due_s, _SHORTEST_SLEEP_S), _LONGEST_SLEEP_S)
