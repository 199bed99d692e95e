"""UserMemoryConsolidationService: finds the users that are due and runs a few at a time, fair between tenants.

Owns its workers and its schedule, but no data. Services in any number of processes may share a store, because the
leases are in the store. The daemon and `--watch` use `watch`; a cron job uses `run_once`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import anyio

from memo.consolidation.budget import Budget
from memo.consolidation.config import ServiceConfig
from memo.consolidation.fair_queue import FairQueue
from memo.consolidation.held_lease import holder_name
from memo.consolidation.ledgered_store import LedgeredStore, needs_ledger
from memo.consolidation.policy import Activity, Standing, Verdict, decide
from memo.consolidation.results import Outcome, Progress, RunResult, UserState, code_of, reason_of
from memo.consolidation.run import ConsolidationRun
from memo.consolidation.settings import ConsolidationSettings
from memo.consolidation.summarisers import Summariser, make_summariser
from memo.documents import USER, Author, Document, DocumentKey
from memo.errors import Corrupt, Unsupported
from memo.ids import TenantId, UserId, UserRef
from memo.ledger import PendingUser, SettlementWriter, require_ledger
from memo.records import require_records

_log = logging.getLogger("memo.consolidation")


class UserMirrors(Protocol):
    """The part of a sandbox manager that the service needs."""

    async def refresh_user_memo_mirror_for_all_sessions(
        self, tenant: TenantId, user: UserId, name: str, content: str
    ) -> object:
        """Show the new text in every live sandbox of the user."""


@dataclass(frozen=True, slots=True)
class _Scan:
    due: tuple[UserRef, ...]
    look_again_at: datetime | None


class UserMemoryConsolidationService:
    """Keeps USER.md up to date from what happens in each user's sessions.

    `lister` lists a user's sessions if the store does not; a summariser may be passed in its place. With a `data_dir`,
    a store without a ledger gets one in that directory. `config` is what `ServiceConfig.parse` accepts; `settings` and
    `summariser` take precedence over it. `sandbox_manager`, also called `mirrors`, is refreshed after a write. `writer`
    commits runs, by default the store itself. `is_busy` returns whether an agent is working for the user now. `observe`
    is called with every event and must not raise.
    """

    def __init__(
        self,
        store: Any,
        lister: Any = None,
        data_dir: Path | str | None = None,
        config: object = None,
        sandbox_manager: UserMirrors | None = None,
        *,
        summariser: Summariser | None = None,
        settings: ConsolidationSettings | None = None,
        writer: SettlementWriter | None = None,
        mirrors: UserMirrors | None = None,
        is_busy: Callable[[UserRef], bool] = lambda _: False,
        observe: Callable[[Progress], None] = lambda _: None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        holder: str | None = None,
    ) -> None:
        if callable(getattr(lister, "draft_profile", None)):
            lister, summariser = None, summariser or lister
        parsed = ServiceConfig.parse(config)
        self._ledger: LedgeredStore | None = None
        if data_dir is not None and needs_ledger(store):
            store = self._ledger = LedgeredStore(store, data_dir, lister=lister)
        require_ledger(store)
        require_records(store)
        self._store = store
        self._summariser = summariser or make_summariser(parsed.summariser)
        self.settings = settings or parsed.settings
        self._writer: SettlementWriter = store if writer is None else writer
        self._mirrors = sandbox_manager if mirrors is None else mirrors
        self._is_enabled = parsed.enabled
        self._task: asyncio.Task[None] | None = None
        self._is_busy = is_busy
        self._observe = observe
        self._clock = clock
        self.holder = holder or holder_name()
        self._wake = anyio.Event()
        self._held: dict[UserRef, datetime] = {}
        self.is_stopping = False

    async def consolidate(self, tenant: str, user: str, *, dry_run: bool = False) -> RunResult:
        """Run one user now, due or not. A `dry_run` changes nothing and takes no lease."""
        return await self._run(UserRef.of(tenant, user), self._budget(None), is_forced=True, is_dry=dry_run)

    async def run_once(
        self,
        users: Iterable[UserRef] | None = None,
        *,
        everybody: bool = False,
        tenant: str | None = None,
        dry_run: bool = False,
    ) -> list[RunResult]:
        """Run these users, or all of them, or those that are due, and return a result for each.

        With `tenant`, only users of that tenant.
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
        """Run users as they become due, until cancelled, or until `stop` is called and the active runs are done."""
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

    def start(self) -> None:
        """Watch in the background, as a task of the running asyncio loop, until `stop`; `aclose` waits for its end.

        For a program without a task group to run `watch` in. Does nothing if the config is not `enabled`.
        """
        if not self._is_enabled or self._task is not None:
            return
        self.is_stopping = False
        self._task = asyncio.get_running_loop().create_task(self._watch_until_stopped(), name="consolidation")

    async def _watch_until_stopped(self) -> None:
        try:
            await self.watch()
        except Exception as error:  # noqa: BLE001  # the boundary of the task: nothing awaits it before `aclose`
            _log.error("cannot continue to consolidate in the background: %s", reason_of(error))

    def nudge(self) -> None:
        """Scan now: a user may have become due."""
        self._wake.set()

    def stop(self) -> None:
        """Start no more runs; `watch` returns when the active ones are done."""
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
        """Return the state of every user with a past run or pending sessions, in two queries.

        A user whose ledger entry is damaged is logged and left out.
        """
        now = self._clock()
        known = {
            user: PendingUser(user, 0, now, standing) for user, standing in await self._store.list_standings(tenant)
        }
        for pending in await self._store.list_pending():
            if tenant in (None, pending.user.tenant):
                known[pending.user] = pending
        states: list[UserState] = []
        for user in sorted(known):
            try:
                states.append(self._state(known[user], now, None, None))
            except Corrupt as error:
                _log.warning("cannot report on user %s: %s", user, error)
        return states

    async def restore(self, tenant: str, user: str, revision: int, *, author: Author | None = None) -> Document:
        """Restore a revision of the profile. Bullets that it lacks stay deleted, as if removed by hand."""
        ref = UserRef.of(tenant, user)
        author = author or Author("host", reason=f"restored revision {revision}")
        if not callable(getattr(self._store, "restore_document", None)):
            raise Unsupported(f"cannot restore revision {revision} of {USER}: this store keeps no history")
        restored: Document = await self._store.restore_document(_key(ref), revision, author=author)
        await self._refresh(ref, restored.content)
        return restored

    async def aclose(self) -> None:
        """Stop, wait for the active runs, and close what the service opened."""
        task, self._task = self._task, None
        if task is not None:
            self.stop()
            await task
        await self._summariser.aclose()
        if self._ledger is not None:
            await self._ledger.close_ledger()

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
        """Query the store once for all users. Those that have waited longest come first."""
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
        """Decide about one user; log it and return None if the user's ledger entry is damaged."""
        activity = Activity(pending.changed, pending.last_activity, self._is_busy(pending.user))
        try:
            return decide(activity, Standing.parse(pending.standing), now, self.settings.policy)
        except Corrupt as error:
            _log.warning("cannot consolidate user %s: %s", pending.user, error)
            return None

    async def _fill(self, queue: FairQueue) -> datetime | None:
        try:
            scan = await self._scan()
        except Exception as error:  # noqa: BLE001  # a third-party store may raise anything; watching survives it
            _log.warning("cannot scan for due users, retrying in %g s: %s", self.settings.scan_s, reason_of(error))
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

        run = ConsolidationRun(
            self._store,
            self._writer,
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
        except Exception as error:  # noqa: BLE001  # a third-party store may raise anything
            result = RunResult(user, Outcome.FAILED, reason_of(error), is_dry=is_dry, code=code_of(error))
        result = replace(result, seconds=time.monotonic() - started)
        if result.outcome in (Outcome.FAILED, Outcome.REFUSED, Outcome.LOST):
            _log.warning("cannot consolidate user %s: %s", user, result.reason)
        if result.document is not None:
            await self._refresh(user, result.document.content)
        observe(Progress("finished", user, result=result))
        return result

    def _note_held(self, result: RunResult) -> None:
        """Check again when another run's lease expires: its process may have died."""
        if result.until is not None:
            self._held[result.user] = result.until
            self._wake.set()

    async def _refresh(self, user: UserRef, content: str) -> None:
        if self._mirrors is None:
            return
        try:
            await self._mirrors.refresh_user_memo_mirror_for_all_sessions(user.tenant, user.user, USER, content)
        except Exception as error:  # noqa: BLE001  # the store has the text; mirrors also follow its change feed
            _log.warning("cannot refresh the mirrors of user %s: %s", user, reason_of(error))

    def _budget(self, parent: Budget | None) -> Budget:
        return Budget(self.settings.run_calls, self.settings.run_tokens, parent)

    def _scan_budget(self) -> Budget:
        return Budget(self.settings.scan_calls, self.settings.scan_tokens)


def _key(user: UserRef) -> DocumentKey:
    return DocumentKey.of_user(user.tenant, user.user, USER)
