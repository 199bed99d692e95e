"""`egress`: what a sandbox has reached, or tried to reach."""

from __future__ import annotations

from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Session, Tenant
from sandboxd.cli.output import print_json, print_line, print_table
from sandboxd.models.network import EgressRecord

_COLUMNS = ("id", "time", "decision", "host", "rule", "request", "received", "sent", "ms", "reason")


def egress(
    session: Session,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also print new connections, until Ctrl-C.")] = False,
    since: Annotated[int, typer.Option(help="Only connections with a higher id.")] = 0,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Show the connections of a session's sandbox: what it reached, what was refused, and why.

    Example: sandboxd egress demo --follow
    """
    with connected(daemon, tenant, json, session=session) as client:
        if not follow:
            found = client.list_egress(session, since)
            if json:
                print_json(found)
            else:
                print_table(_COLUMNS, [_row(record) for record in found.items])
            return
        try:
            for record in client.follow_egress(session, since):
                if json:
                    print_json(record)
                else:
                    print_line("  ".join(cell for cell in _row(record) if cell))
        except KeyboardInterrupt:
            raise typer.Exit(0) from None  # the usual way to stop following


def _row(record: EgressRecord) -> tuple[str, ...]:
    request = " ".join(str(part) for part in (record.method, record.path, record.status) if part is not None)
    return (
        str(record.id),
        record.at.astimezone().strftime("%H:%M:%S"),
        record.decision,
        f"{record.host}:{record.port}",
        " ".join(part for part in (record.rule, record.credential and f"+{record.credential}") if part),
        request,
        str(record.bytes_in),
        str(record.bytes_out),
        f"{record.ms:.0f}",
        record.reason or "",
    )
