"""`refresh`: update mirrors from the store, after a write to a store that does not report changes."""

from __future__ import annotations

from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Tenant
from sandboxd.cli.output import print_json, print_line
from sandboxd.cli.place import User


def refresh(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SESSION [PATH]", help="The session, and a path under /workspace/memo; all files by default."
        ),
    ] = None,
    user: User = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Refresh memory from the store: of one session, or with --user one document in all of a user's sessions.

    Needed only after a write to a store that does not report its changes.

    Example: sandboxd refresh demo    or    sandboxd refresh --user alice USER.md
    """
    given = words or []
    if user is not None:
        if len(given) != 1:
            raise typer.BadParameter("expected --user USER NAME", param_hint="the arguments")
    elif len(given) not in (1, 2):
        raise typer.BadParameter("expected SESSION [PATH], or --user USER NAME", param_hint="the arguments")
    with connected(daemon, tenant, json) as client:
        count = (
            client.refresh_memo_mirror(*given)
            if user is None
            else client.refresh_user_memo_mirror_for_all_sessions(user, given[0])
        )
        refused = client.list_refused_writes(given[0]) if user is None and count else []
    if json:
        print_json({"refreshed": count, "refused": refused})
        return
    print_line(f"refreshed {count} file{'' if count == 1 else 's'}")
    for write in refused:
        print_line(f"permanently rejected: write {write.number} to {write.path}, {write.size} bytes: {write.why}")
