"""`consolidate`: update users' USER.md from their sessions, once or continuously.

By default the daemon does the work, as it also does in the background. With --store or --watch this process does it,
alongside any daemon: a lease in the store protects each user.
"""

from __future__ import annotations

from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.consolidate_output import Item, print_items, print_one, print_status, show_progress
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json
from sandboxd.cli.output import FAILED
from sandboxd.client import Client
from sandboxd.client.errors import KNOWN_ERRORS, DaemonUnreachable
from sandboxd.models.consolidation import ConsolidationState

AT_ONCE = 4
DEFAULT_TENANT = "default"


def consolidate(
    user: Annotated[str | None, typer.Option("--user", "-u", help="Run this user, due or not.")] = None,
    all_users: Annotated[bool, typer.Option("--all", help="Run every user, due or not.")] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Run the users that are due, then exit; for cron. The default.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Run users as they become due, in this process, until stopped.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Show which users are due and what failed.")] = False,
    store: Annotated[
        str | None, typer.Option("--store", help="Work in this process on this store, instead of using a daemon.")
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant",
            "-t",
            envvar="SANDBOXD_TENANT",
            help="The tenant of the users; all tenants by default with --store.",
        ),
    ] = None,
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Update users' USER.md from their sessions. Hand-written text stays, and every version is kept.

    Example: sandboxd consolidate --user alice --dry-run    or    sandboxd consolidate --status

    To undo a run: sandboxd memo restore --user alice USER.md 3
    """
    chosen = [name for name, is_set in (("--all", all_users), ("--once", once), ("--watch", watch)) if is_set]
    if user is not None:
        chosen.append("--user")
    _check(chosen, dry_run, status, tenant, watch)
    if store is not None or watch:
        from sandboxd.cli import consolidate_store

        consolidate_store.act(
            consolidate_store.Wish(store, tenant, user, all_users, watch, dry_run, status), as_json=json
        )
        return
    with connected(daemon, tenant or DEFAULT_TENANT, json) as client:
        if status:
            print_status([client.get_consolidation(user)] if user is not None else client.list_consolidations(), json)
        elif user is not None:
            with show_progress(1) as advance:
                result = client.consolidate(user, dry_run=dry_run)
                advance(user)
            print_one(user, result, json)
        else:
            _ask_for_many(client, all_users=all_users, dry_run=dry_run, as_json=json)


def _check(chosen: list[str], dry_run: bool, status: bool, tenant: str | None, watch: bool) -> None:
    if len(chosen) > 1:
        raise typer.BadParameter(f"choose one of {', '.join(chosen)}", param_hint="options")
    if status and (dry_run or chosen not in ([], ["--user"])):
        raise typer.BadParameter("use --status alone or with --user", param_hint="--status")
    if watch and (dry_run or tenant is not None):
        raise typer.BadParameter("--watch serves all tenants and has no dry run", param_hint="--watch")


def _ask_for_many(client: Client, *, all_users: bool, dry_run: bool, as_json: bool) -> None:
    from concurrent.futures import ThreadPoolExecutor, as_completed

    users = [state for state in client.list_consolidations() if all_users or state.due]
    items: list[Item] = []
    with show_progress(len(users)) as advance, ThreadPoolExecutor(AT_ONCE) as threads:
        asked = [threads.submit(_ask, client, state, dry_run) for state in users]
        try:
            for done in as_completed(asked):
                items.append(done.result())
                advance(items[-1].user)
        except DaemonUnreachable:
            threads.shutdown(cancel_futures=True)
            raise
    print_items(sorted(items, key=lambda item: item.user), as_json)
    if any(item.is_failure for item in items):
        raise typer.Exit(FAILED)


def _ask(client: Client, state: ConsolidationState, dry_run: bool) -> Item:
    try:
        return Item(state.tenant, state.user, client.consolidate(state.user, dry_run=dry_run))
    except DaemonUnreachable:
        raise
    except KNOWN_ERRORS as error:
        return Item(state.tenant, state.user, None, getattr(error, "code", "internal.error"), str(error))
