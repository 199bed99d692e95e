"""ConsolidationService: consolidation in the daemon, in the background and on demand, with events and metrics.

Owns memo's service and its one task; `memo.consolidation` decides everything about profiles. A store without a ledger
gets one in the data directory (`memo.consolidation.with_ledger`). If the store keeps no messages, or is read-only,
consolidation is off; `refusal` and every call then say why.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio
import structlog

from memo.consolidation import (
    Outcome,
    Progress,
    RunResult,
    SettlementWriter,
    Summariser,
    UserMemoryConsolidationService,
    UserState,
    make_summariser,
)
from memo.errors import MemoError, Unsupported
from memo.ids import UserRef
from sandboxd.consolidation.errors import DONE, error_of
from sandboxd.consolidation_settings import ConsolidationOptions
from sandboxd.errors import InvalidRequest
from sandboxd.events import EventBus, Field
from sandboxd.metrics import Metrics

_log = structlog.get_logger()

BUSY_CACHE_S = 0.1
"""How long the set of busy users is cached, because a scan needs it for every user."""


def make_service(store: Any, options: ConsolidationOptions, **more: Any) -> UserMemoryConsolidationService:
    """Make memo's service. Raise Unsupported if the store has no ledger, InvalidRequest if a setting is invalid."""
    try:
        summariser: Summariser = make_summariser(options.summariser_settings())
    except MemoError as error:
        raise InvalidRequest(f"cannot consolidate: {error}") from error
    return UserMemoryConsolidationService(store, summariser=summariser, settings=options.service_settings(), **more)


class ConsolidationService(anyio.AsyncContextManagerMixin):
    """Use it as an async context manager. `writer` commits runs, by default the store itself."""

    def __init__(
        self,
        store: Any,
        options: ConsolidationOptions,
        *,
        events: EventBus,
        metrics: Metrics,
        writer: SettlementWriter | None = None,
        busy_users: Callable[[], set[UserRef]] = set,
        drain_s: float = 10.0,
    ) -> None:
        self.options = options
        self.refusal = ""
        self._events = events
        self._metrics = metrics
        self._busy = _BusyUsers(busy_users)
        self._drain_s = drain_s
        self._deadline: float | None = None
        self._is_over = anyio.Event()
        self._on_demand = anyio.Semaphore(options.concurrency)
        self._service: UserMemoryConsolidationService | None = None
        try:
            self._service = make_service(
                store,
                options,
                writer=writer,
                is_busy=self._busy.__contains__,
                observe=self._observe,
            )
        except Unsupported as error:
            self.refusal = str(error)

    @property
    def is_running(self) -> bool:
        """Whether it consolidates users in the background."""
        return self._service is not None and self.options.enabled and self._deadline is None

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        if self._service is None:
            _log.warning("consolidation is off: the store does not support it", reason=self.refusal)
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
        """Start no more runs. Active runs may continue for the drain time; then they and their leases are dropped."""
        if self._deadline is None and self._service is not None:
            self._deadline = anyio.current_time() + self._drain_s
            self._service.stop()

    def stop_now(self) -> None:
        """Drop the active runs without waiting for them."""
        self.stop()
        self._is_over.set()

    async def drain(self) -> None:
        """Stop, and wait for the active runs until the drain time is over."""
        self.stop()
        if not self.options.enabled or self._deadline is None:
            return
        with anyio.move_on_after(max(self._deadline - anyio.current_time(), 0)) as waiting:
            await self._is_over.wait()
        if waiting.cancelled_caught:
            self._is_over.set()
            _log.info("running consolidations were dropped; the next scan continues them")

    async def run(self, user: UserRef, *, dry_run: bool = False) -> RunResult:
        """Run one user now. Raise the error that `error_of` gives for a failed run."""
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
            return  # a dry run changes nothing
        elif progress.kind == "started":
            self._publish(progress, "started")
        elif progress.kind in ("summarised", "session_failed"):
            self._publish(progress, progress.kind, session=progress.session)
        elif progress.result is not None:
            self._finished(progress, progress.result)

    def _finished(self, progress: Progress, result: RunResult) -> None:
        outcome = result.outcome.code
        self._metrics.record_consolidation(outcome, result.seconds, result.calls, result.tokens)
        if result.outcome in (Outcome.HELD, Outcome.NOT_DUE):
            return  # the run that did the work announces it
        fields: dict[str, Field] = {"outcome": outcome, "calls": result.calls, "tokens": result.tokens}
        if result.outcome in DONE:
            self._publish(progress, "finished", **fields, revision=result.revision, sessions=len(result.sessions))
        else:
            what = "postponed" if result.outcome is Outcome.POSTPONED else "failed"
            self._publish(progress, what, **fields, reason=result.reason)

    def _publish(self, progress: Progress, what: str, **fields: Field) -> None:
        if progress.user is not None:
            self._events.publish(
                "consolidation", what=what, tenant=progress.user.tenant, user=progress.user.user, **fields
            )


class _BusyUsers:
    """Return the busy users, cached so that a scan does not compute the set for each user."""

    def __init__(self, busy_users: Callable[[], set[UserRef]]) -> None:
        self._busy_users = busy_users
        self._users: set[UserRef] = set()
        self._until = 0.0

    def __contains__(self, user: UserRef) -> bool:
        now = time.monotonic()
        if now >= self._until:
            self._users, self._until = self._busy_users(), now + BUSY_CACHE_S
        return user in self._users
