"""`consolidate` in this process, on a store: one user, all due users, all users, or watching until stopped.

Uses the same service and settings as the daemon. Mirrors of live sandboxes follow the store.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import dataclass
from typing import Any

import anyio
import typer

from memo import StoreOptions, open_store
from memo.consolidation import (
    Failure,
    Outcome,
    Progress,
    RunResult,
    UserMemoryConsolidationService,
    UserState,
    with_ledger,
)
from memo.errors import MemoError
from memo.ids import UserRef
from sandboxd.cli.consolidate_output import Item, print_item, print_items, print_one, print_status, show_progress
from sandboxd.cli.output import FAILED, fail, print_json
from sandboxd.cli.serve import load_settings
from sandboxd.consolidation.errors import error_of
from sandboxd.consolidation.service import make_service
from sandboxd.errors import SandboxdError
from sandboxd.models.consolidation import Consolidated, ConsolidationFailure, ConsolidationState
from sandboxd.settings import Settings

DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class Wish:
    """The options of the command line."""

    store: str | None
    tenant: str | None
    user: str | None
    all_users: bool
    watch: bool
    dry_run: bool
    status: bool


def act(wish: Wish, *, as_json: bool) -> None:
    settings = load_settings(as_json, store=wish.store)
    if not wish.watch:
        # A command prints every reason at the end; a service only has its log.
        logging.getLogger("memo.consolidation").setLevel(logging.ERROR)
    try:
        failures = anyio.run(_act, wish, settings, as_json, backend_options={"use_uvloop": True})
    except (SandboxdError, MemoError) as error:
        fail(error, as_json)
    if failures:
        raise typer.Exit(FAILED)


async def _act(wish: Wish, settings: Settings, as_json: bool) -> int:
    """Return how many users failed."""
    async with (
        open_store(settings.store_url, StoreOptions(limits=settings.store_limits)) as opened,
        with_ledger(opened, settings.data) as store,
    ):
        if wish.watch:
            await _watch(store, settings, as_json)
            return 0
        if wish.status:
            service = make_service(store, settings.consolidation)
            user = wish.user
            states = (
                await service.status(wish.tenant)
                if user is None
                else [await service.state(wish.tenant or DEFAULT_TENANT, user)]
            )
            print_status([_state(state) for state in states], as_json)
            return 0
        if wish.user is not None:
            await _run_one(store, settings, UserRef.of(wish.tenant or DEFAULT_TENANT, wish.user), wish.dry_run, as_json)
            return 0
        return await _run_many(store, settings, wish, as_json)


async def _run_one(store: Any, settings: Settings, user: UserRef, dry_run: bool, as_json: bool) -> None:
    service = make_service(store, settings.consolidation)
    with show_progress(1) as advance:
        result = await service.consolidate(user.tenant, user.user, dry_run=dry_run)
        advance(user.user)
    await service.aclose()
    error = error_of(result)
    if error is not None:
        raise error
    print_one(user.user, _consolidated(result), as_json)


async def _run_many(store: Any, settings: Settings, wish: Wish, as_json: bool) -> int:
    found = await _chosen(store, settings, wish)
    with show_progress(len(found)) as advance:

        def observe(progress: Progress) -> None:
            if progress.result is not None:
                advance(progress.result.user.user)

        service = make_service(store, settings.consolidation, observe=observe)
        # Due users are checked again under their lease: another process may have done the work.
        users = found if wish.all_users else None
        results = await service.run_once(users, tenant=wish.tenant, dry_run=wish.dry_run)
        await service.aclose()
    items = [_item(result) for result in results if result.outcome is not Outcome.NOT_DUE]
    print_items(sorted(items, key=lambda item: (item.tenant, item.user)), as_json)
    return sum(item.is_failure for item in items)


async def _chosen(store: Any, settings: Settings, wish: Wish) -> list[UserRef]:
    if wish.all_users:
        return [user for user in await store.list_users() if wish.tenant in (None, user.tenant)]
    states = await make_service(store, settings.consolidation).status(wish.tenant)
    return [state.user for state in states if state.is_due]


async def _watch(store: Any, settings: Settings, as_json: bool) -> None:
    def observe(progress: Progress) -> None:
        result = progress.result
        if result is not None and result.outcome not in (Outcome.HELD, Outcome.NOT_DUE):
            print_item(_item(result), as_json)

    service = make_service(store, settings.consolidation, observe=observe)
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            tasks.start_soon(_watch_then_end, service, tasks.cancel_scope)
            _say_watching(as_json)
            async for _ in signals:
                if service.is_stopping:  # a second signal: stop without waiting
                    tasks.cancel_scope.cancel()
                service.stop()
                tasks.cancel_scope.deadline = anyio.current_time() + settings.drain_s
    await service.aclose()


async def _watch_then_end(service: UserMemoryConsolidationService, scope: anyio.CancelScope) -> None:
    await service.watch()
    scope.cancel()  # signals are no longer awaited


def _say_watching(as_json: bool) -> None:
    if as_json:
        print_json({"event": "ready", "pid": os.getpid()})
    else:
        sys.stderr.write("watching; stop with Ctrl-C or SIGTERM\n")


def _item(result: RunResult) -> Item:
    error = error_of(result)
    if error is not None:
        return Item(result.user.tenant, result.user.user, None, error.code, str(error))
    return Item(result.user.tenant, result.user.user, _consolidated(result))


def _consolidated(result: RunResult) -> Consolidated:
    return Consolidated(
        changed=result.is_changed,
        revision=result.revision or None,
        diff=result.diff,
        sessions=result.sessions,
        outcome=result.outcome.code,
        reason=result.reason,
        failed=dict(result.failed),
        dry_run=result.is_dry,
        calls=result.calls,
        tokens=result.tokens,
    )


def _state(state: UserState) -> ConsolidationState:
    standing = state.standing
    return ConsolidationState(
        tenant=state.user.tenant,
        user=state.user.user,
        due=state.is_due,
        why=str(state.why),
        look_again_at=state.look_again_at,
        changed_sessions=state.changed,
        last_activity=state.last_activity,
        runs=standing.runs,
        last_run_at=standing.last_run_at,
        last_outcome=None if state.last_outcome is None else state.last_outcome.code,
        unfinished=standing.is_unfinished,
        revision=state.revision,
        held_by=state.holder,
        failure=None if standing.failure is None else _failure(standing.failure),
        failed_sessions={session: _failure(failure) for session, failure in standing.sessions.items()},
        background=False,
    )


def _failure(failure: Failure) -> ConsolidationFailure:
    return ConsolidationFailure(reason=failure.reason, count=failure.count, retry_at=failure.retry_at)
