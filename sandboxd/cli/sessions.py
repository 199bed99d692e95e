"""`sessions`: the sessions in the store, with or without a sandbox."""

from __future__ import annotations

from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Tenant
from sandboxd.cli.output import print_json, print_table


def sessions(
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only the sessions of this user.")] = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """List the sessions of a tenant, last changed first.

    Example: sandboxd sessions --user alice
    """
    with connected(daemon, tenant, json) as client:
        found = client.list_sessions(user)
    if json:
        print_json({"items": found})
        return
    rows = [
        (
            one.session,
            one.user,
            one.agent,
            str(one.message_count),
            str(one.turns),
            str(one.tokens),
            one.updated_at.isoformat(timespec="seconds"),
        )
        for one in found
    ]
    print_table(("session", "user", "agent", "messages", "turns", "tokens", "updated"), rows)
