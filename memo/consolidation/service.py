"""The service: finds the users that are due through the store, and runs them, a few at a time, fair between tenants.

Owns its workers and the timetable, no data. Any number of services, in any number of processes, may serve one store:
the lease of a user is in the store. The same service is the daemon's, `--watch`'s and, with `run_once`, cron's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

import anyio

from memo.consolidation.budget import Budget
from memo.consolidation.drafting import code_of, reason_of
from memo.consolidation.fair_queue import FairQueue
from memo.consolidation.leases import holder_name
from memo.consolidation.ledger import PendingUser, require_ledger
from memo.consolidation.policy import Activity, Verdict, decide
from memo.consolidation.results import Outcome, Progress, RunResult, UserState
from memo.consolidation.run import Run
from memo.consolidation.settings import ConsolidationSettings
from memo.consolidation.standing import Standing
from memo.consolidation.summarisers import EmbeddedSummariser, Summariser
from memo.documents import USER, Author, Document, DocumentKey
from memo.errors import Corrupt
from memo.ids import TenantId, UserId, UserRef
from memo.records import require_records
from memo.stores.options import utc_now

_log = logging.getLogger("memo.consolidation")


class UserMirrors(Protocol):
    """The part of a sandbox manager that the service uses."""

    async def refresh_user_memo_mirror_for_all_sessions(
        self, tenant: TenantId, user: UserId, name: str, content: str
    ) -> object:
        """Show the new text to every live sandbox of the user."""


@dataclass(frozen=True, slots=True)
class _Scan:
    due: tuple[UserRef, ...]
    look_again_at: datetime | None


class UserMemoryConsolidationService:
    """`is_busy` says whether somebody works for the user now; `observe` is told what happens, and must not fail."""

    def __init__(
        self,
        store: Any,
        summariser: Summariser | None = None,
        *,
        settings: ConsolidationSettings | None = None,
        mirrors: UserMirrors | None = None,
        is_busy: Callable[[UserRef], bool] = lambda _: False,
        observe: Callable[[Progress], None] = lambda _: None,
        clock: Callable[[], datetime] = utc_now,
        holder: str | None = None,
    ) -> None:
        require_ledger(store)
        require_records(store)
        self._store = store
        self._summariser = summariser or EmbeddedSummariser()
        self.settings = settings or ConsolidationSettings()
        self._mirrors = mirrors
        self._is_busy = is_busy
        self._observe = observe
        self._clock = clock
        self.holder = holder or holder_name()
        self._wake = anyio.Event()
        self._held: dict[UserRef, datetime] = {}
        self.is_stopping = False

    async def consolidate(self, tenant: str, user: str, *, dry_run: bool = False) -> RunResult:
        """Run one user now, whether or not anything is due. `dry_run` changes nothing, and needs no lease."""
        return await self._run(UserRef.of(tenant, user), self._budget(None), is_forced=True, is_dry=dry_run)

    async def run_once(
        self,
        users: Iterable[UserRef] | None = None,
        *,
        everybody: bool = False,
        tenant: str | None = None,
        dry_run: bool = False,
    ) -> list[RunResult]:
        """Run those users, or everybody, or whoever is due; return when all are done, with a result for each.

        With `tenant`, only those of one tenant.
        """
        is_forced = everybody or users is not None
        if everybody:
            users = await self._store.list_users()
        found = (await self._scan()).due if users is None else users
        chosen = tuple(user for user in found if tenant in (None, user.tenant))
        queue, budget = FairQueue(), self._scan_budget()
        results: list[RunResult] = []
        for user in chosen:
            queue.put(user)
        queue.close()
        async with anyio.create_task_group() as tasks:
            for _ in range(min(self.settings.concurrency, len(chosen))):
                tasks.start_soon(self._work, queue, lambda: budget, results.append, is_forced, dry_run)
        return results

    async def watch(self) -> None:
        """Run whoever is due, for ever; ends when cancelled, or after `stop` when what is under way is done."""
        queue, scans = FairQueue(), [self._scan_budget()]
        async with anyio.create_task_group() as tasks:
            for _ in range(self.settings.concurrency):
                tasks.start_soon(self._work, queue, lambda: scans[-1], self._note_held, False, False)
            while not self.is_stopping:
                self._wake = anyio.Event()
                scans[:] = [self._scan_budget()]
                look_again_at = await self._fill(queue)
                with anyio.move_on_after(self._delay_s(look_again_at)):
                    await self._wake.wait()
            queue.drain()

    def nudge(self) -> None:
        """Look now: something happened that may have made somebody due."""
        self._wake.set()

    def stop(self) -> None:
        """Begin nobody new; `watch` returns when those under way are done."""
        self.is_stopping = True
        self._wake.set()

    async def state(self, tenant: str, user: str) -> UserState:
        ref = UserRef.of(tenant, user)
        entry = await self._store.read_ledger(ref)
        document = await self._store.read_document(_key(ref))
        now = self._clock()
        holder = entry.lease.holder if entry.lease is not None and not entry.lease.is_free(now) else None
        pending = PendingUser(ref, entry.changed, entry.last_activity or now, entry.standing)
        return self._state(pending, now, holder, document.revision if document else None)

    async def status(self, tenant: str | None = None) -> list[UserState]:
        """Return the state of every user that ever had a run or has one to come, in two queries for all."""
        now = self._clock()
        known = {
            user: PendingUser(user, 0, now, standing) for user, standing in await self._store.list_standings(tenant)
        }
        for pending in await self._store.list_pending():
            if tenant in (None, pending.user.tenant):
                known[pending.user] = pending
        return [self._state(known[user], now, None, None) for user in sorted(known)]

    async def restore(self, tenant: str, user: str, revision: int, *, author: Author | None = None) -> Document:
        """Bring a version of the profile back. What it does not have stays away, as if deleted by hand."""
        ref = UserRef.of(tenant, user)
        author = author or Author("host", reason=f"restored revision {revision}")
        restored: Document = await self._store.restore_document(_key(ref), revision, author=author)
        await self._refresh(ref, restored.content)
        return restored

    async def aclose(self) -> None:
        await self._summariser.aclose()

    def _state(self, pending: PendingUser, now: datetime, holder: str | None, revision: int | None) -> UserState:
        standing = Standing.parse(pending.standing)
        activity = Activity(pending.changed, pending.last_activity, self._is_busy(pending.user))
        verdict = decide(activity, standing, now, self.settings.policy)
        last = pending.last_activity if pending.changed else None
        known = revision if revision is not None else standing.revision or None
        return UserState(
            pending.user, standing, pending.changed, last, verdict.why, verdict.look_again_at, holder, known
        )

    async def _scan(self) -> _Scan:
        """Ask the store once for everybody. Whoever waited longest comes first."""
        now = self._clock()
        self._held = {user: until for user, until in self._held.items() if until > now}
        due: list[PendingUser] = []
        looks = list(self._held.values())
        for pending in await self._store.list_pending():
            verdict = self._verdict(pending, now)
            if verdict is None:
                continue
            if verdict.is_due and pending.user not in self._held:
                due.append(pending)
            elif verdict.look_again_at is not None:
                looks.append(verdict.look_again_at)
        due.sort(key=lambda pending: pending.last_activity)
        self._observe(Progress("scan", total=len(due)))
        return _Scan(tuple(pending.user for pending in due), min(looks, default=None))

    def _verdict(self, pending: PendingUser, now: datetime) -> Verdict | None:
        """Decide on one user; None, and a line in the log, if the ledger of this user is damaged."""
        activity = Activity(pending.changed, pending.last_activity, self._is_busy(pending.user))
        try:
            return decide(activity, Standing.parse(pending.standing), now, self.settings.policy)
        except Corrupt as error:
            _log.warning("cannot consolidate user %s: %s", pending.user, error)
            return None

    async def _fill(self, queue: FairQueue) -> datetime | None:
        try:
            scan = await self._scan()
        except Exception as error:  # noqa: BLE001  # the store may be anybody's; watching outlives what it raises
            _log.warning("cannot look who is due, trying again in %g s: %s", self.settings.scan_s, reason_of(error))
            return None
        for user in scan.due:
            queue.put(user)
        return scan.look_again_at

    def _delay_s(self, look_again_at: datetime | None) -> float:
        if look_again_at is None:
            return self.settings.scan_s
        wait = look_again_at - self._clock() + timedelta(milliseconds=1)
        return min(max(wait.total_seconds(), 0.0), self.settings.scan_s)

    async def _work(
        self,
        queue: FairQueue,
        budget: Callable[[], Budget],
        finished: Callable[[RunResult], None],
        is_forced: bool,
        is_dry: bool,
    ) -> None:
        while (user := await queue.take()) is not None:
            try:
                finished(await self._run(user, self._budget(budget()), is_forced=is_forced, is_dry=is_dry))
            finally:
                queue.done(user)

    async def _run(self, user: UserRef, budget: Budget, *, is_forced: bool, is_dry: bool) -> RunResult:
        def observe(progress: Progress) -> None:
            self._observe(replace(progress, is_dry=is_dry))

        run = Run(
            self._store,
            self._summariser,
            user,
            self.settings,
            budget,
            self._clock,
            observe,
            self.holder,
            is_forced,
            is_dry,
            self._is_busy,
        )
        started = time.monotonic()
        try:
            result = await run.perform()
        except Exception as error:  # noqa: BLE001  # the store did not even give the lease; it may be anybody's
            result = RunResult(user, Outcome.FAILED, reason_of(error), is_dry=is_dry, code=code_of(error))
        result = replace(result, seconds=time.monotonic() - started)
        if result.outcome in (Outcome.FAILED, Outcome.REFUSED, Outcome.LOST):
            _log.warning("cannot consolidate user %s: %s", user, result.reason)
        if result.outcome is Outcome.WRITTEN and not is_dry:
            await self._follow(user)
        observe(Progress("finished", user, result=result))
        return result

    def _note_held(self, result: RunResult) -> None:
        """Come back when the other's lease ends: if it died, its user is ours then."""
        if result.until is not None:
            self._held[result.user] = result.until
            self._wake.set()

    async def _follow(self, user: UserRef) -> None:
        if self._mirrors is None:
            return
        try:
            document = await self._store.read_document(_key(user))
        except Exception as error:  # noqa: BLE001  # it is written; mirrors hear of it from the store's feed, too
            _log.warning("cannot show user %s the new profile yet: %s", user, reason_of(error))
            return
        if document is not None:
            await self._refresh(user, document.content)

    async def _refresh(self, user: UserRef, content: str) -> None:
        if self._mirrors is None:
            return
        try:
            await self._mirrors.refresh_user_memo_mirror_for_all_sessions(user.tenant, user.user, USER, content)
        except Exception as error:  # noqa: BLE001  # the store has it; a mirror can be made again, and is
            _log.warning("cannot refresh the mirrors of user %s: %s", user, reason_of(error))

    def _budget(self, parent: Budget | None) -> Budget:
        return Budget(self.settings.run_calls, self.settings.run_tokens, parent)

    def _scan_budget(self) -> Budget:
        return Budget(self.settings.scan_calls, self.settings.scan_tokens)


def _key(user: UserRef) -> DocumentKey:
    return DocumentKey.of_user(user.tenant, user.user, USER)
