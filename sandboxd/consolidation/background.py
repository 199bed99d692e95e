"""Consolidation as a part of the daemon: its background service, runs on demand, and what is told of them.

Owns the service and its one task. It decides nothing about profiles: `memo.consolidation` does. A store that keeps no
ledger leaves the daemon without it; then `refusal` says why, and so does every answer.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
import structlog

from memo.consolidation import Outcome, Progress, RunResult, UserMemoryConsolidationService, UserMirrors, UserState
from memo.consolidation.summarisers import Summariser, make_summariser
from memo.errors import MemoError, Unsupported
from memo.ids import UserRef
from sandboxd.consolidation.failures import DONE, error_of
from sandboxd.consolidation.settings import ConsolidationOptions
from sandboxd.errors import InvalidRequest
from sandboxd.events import EventBus, Field
from sandboxd.metrics import Metrics

_log = structlog.get_logger()

BUSY_FOR_S = 0.1
"""How old an answer to "who is being served" may be: a scan asks it for every user."""


def make_service(store: Any, options: ConsolidationOptions, **more: Any) -> UserMemoryConsolidationService:
    """Make a service by settings. Unsupported if the store keeps no ledger, InvalidRequest if a setting is wrong."""
    try:
        summariser: Summariser = make_summariser(options.summariser_settings())
    except MemoError as error:
        raise InvalidRequest(f"cannot consolidate: {error}") from error
    return UserMemoryConsolidationService(store, summariser, settings=options.service_settings(), **more)


class Consolidation(anyio.AsyncContextManagerMixin):
    """Use it as an async context manager. `busy_users` tells whom somebody works for now."""

    def __init__(
        self,
        store: Any,
        options: ConsolidationOptions,
        *,
        events: EventBus,
        metrics: Metrics,
        mirrors: UserMirrors | None = None,
        busy_users: Callable[[], set[UserRef]] = set,
        drain_s: float = 10.0,
    ) -> None:
        self.options = options
        self.refusal = ""
        self._events = events
        self._metrics = metrics
        self._busy = _Busy(busy_users)
        self._drain_s = drain_s
        self._deadline: float | None = None
        self._is_over = anyio.Event()
        self._on_demand = anyio.Semaphore(options.concurrency)
        self._service: UserMemoryConsolidationService | None = None
        try:
            self._service = make_service(
                store, options, mirrors=mirrors, is_busy=self._busy.__contains__, observe=self._observe
            )
        except Unsupported as error:
            self.refusal = str(error)

    @property
    def is_running(self) -> bool:
        """Whether it looks by itself who is due."""
        return self._service is not None and self.options.enabled and self._deadline is None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        if self._service is None:
            _log.warning("consolidation is off: the store cannot keep it", reason=self.refusal)
            yield self
            return
        try:
            async with anyio.create_task_group() as tasks:
                if self.options.enabled:
                    tasks.start_soon(self._watch, self._service)
                try:
                    yield self
                finally:
                    await self.drain()
                    tasks.cancel_scope.cancel()
        finally:
            await self._service.aclose()

    def stop(self) -> None:
        """Begin nobody new. Those under way may go on for the drain time; then they are given up, and their leases."""
        if self._deadline is None and self._service is not None:
            self._deadline = anyio.current_time() + self._drain_s
            self._service.stop()

    def stop_now(self) -> None:
        """Give up those under way without waiting for them."""
        self.stop()
        self._is_over.set()

    async def drain(self) -> None:
        """Stop, and wait for those under way, at most for what is left of the drain time."""
        self.stop()
        if not self.options.enabled or self._deadline is None:
            return
        with anyio.move_on_after(max(self._deadline - anyio.current_time(), 0)) as waiting:
            await self._is_over.wait()
        if waiting.cancelled_caught:
            self._is_over.set()
            _log.info("consolidations under way are given up, and taken up again by the next scan of anybody")

    async def run(self, user: UserRef, *, dry_run: bool = False) -> RunResult:
        """Run one user now. Raises what `error_of` makes of a run that failed."""
        async with self._on_demand:
            result = await self._ready().consolidate(user.tenant, user.user, dry_run=dry_run)
        error = error_of(result)
        if error is not None:
            raise error
        return result

    async def state(self, user: UserRef) -> UserState:
        return await self._ready().state(user.tenant, user.user)

    async def states(self, tenant: str) -> list[UserState]:
        return await self._ready().status(tenant)

    def _ready(self) -> UserMemoryConsolidationService:
        if self._service is None:
            raise Unsupported(self.refusal)
        return self._service

    async def _watch(self, service: UserMemoryConsolidationService) -> None:
        try:
            await service.watch()
        finally:
            self._is_over.set()

    def _observe(self, progress: Progress) -> None:
        if progress.kind == "scan":
            self._metrics.note_due(progress.total)
        elif progress.is_dry:
            return  # nothing happens
        elif progress.kind == "started":
            self._tell(progress, "started")
        elif progress.kind == "session_failed":
            self._tell(progress, "session_failed", session=progress.session)
        elif progress.result is not None:
            self._finished(progress, progress.result)

    def _finished(self, progress: Progress, result: RunResult) -> None:
        outcome = result.outcome.code
        self._metrics.record_consolidation(outcome, result.seconds, result.calls, result.tokens)
        if result.outcome in (Outcome.HELD, Outcome.NOT_DUE):
            return  # somebody else does it or did it, and tells
        fields: dict[str, Field] = {"outcome": outcome, "calls": result.calls, "tokens": result.tokens}
        if result.outcome in DONE:
            self._tell(progress, "finished", **fields, revision=result.revision, sessions=len(result.sessions))
        else:
            what = "postponed" if result.outcome is Outcome.POSTPONED else "failed"
            self._tell(progress, what, **fields, reason=result.reason)

    def _tell(self, progress: Progress, what: str, **fields: Field) -> None:
        if progress.user is not None:
            self._events.publish(
                "consolidation", what=what, tenant=progress.user.tenant, user=progress.user.user, **fields
            )


class _Busy:
    """Whom somebody works for now, asked at most ten times a second however many users a scan looks at."""

    def __init__(self, busy_users: Callable[[], set[UserRef]]) -> None:
        self._busy_users = busy_users
        self._users: set[UserRef] = set()
        self._until = 0.0

    def __contains__(self, user: UserRef) -> bool:
        now = time.monotonic()
        if now >= self._until:
            self._users, self._until = self._busy_users(), now + BUSY_FOR_S
        return user in self._users
