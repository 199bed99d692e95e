"""`events`: what happened in the daemon, past and new."""

from __future__ import annotations

from json import dumps
from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json
from sandboxd.cli.output import print_json, print_line
from sandboxd.models.event import MAX_PAGE, Event

_WHEN = "as in RFC 3339, or how long ago, such as 90s, 15m, 1h or 7d"


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also print new events, until Ctrl-C.")] = False,
    after: Annotated[int | None, typer.Option(help="Only events with a higher id.")] = None,
    session: Annotated[str | None, typer.Option("--session", "-s", help="Only events of this session.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only events of this user.")] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", "-t", envvar="SANDBOXD_TENANT", help="Only events of this tenant.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", "-k", help="Only events of this kind; repeat it, or separate kinds by commas."),
    ] = None,
    since: Annotated[str | None, typer.Option(help=f"Only events from this time on: {_WHEN}.")] = None,
    until: Annotated[str | None, typer.Option(help=f"Only events before this time: {_WHEN}.")] = None,
    limit: Annotated[int | None, typer.Option(help="The most past events.", min=1, max=MAX_PAGE)] = None,
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Print past events, also from before a restart of the daemon, one per line.

    With --follow alone only new ones. --after, --since and --limit say which past events come before them.

    Example: sandboxd events --session demo --since 1h --follow
    """
    with connected(daemon, "default", json) as client:
        try:
            found = client.events(
                after,
                follow=follow,
                tenant=tenant,
                session=session,
                user=user,
                kinds=kind or (),
                since=since,
                until=until,
                limit=limit,
            )
            for event in found:
                _print(event, json)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None  # the usual way to stop following


def _print(event: Event, as_json: bool) -> None:
    if as_json:
        print_json({"id": event.id, "kind": event.kind, "at": event.at, **event.fields})
        return
    fields = " ".join(f"{name}={_shown(value)}" for name, value in event.fields.items() if value not in (None, []))
    print_line(f"{event.at.isoformat(timespec='milliseconds')}  {event.kind:<10} {fields}")


def _shown(value: object) -> str:
    """Return a value on one line. Text with spaces is quoted, so that one field cannot look like two."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    text = str(value)
    return (
        text
        if text.isprintable() and " " not in text and '"' not in text
        else dumps(text, ensure_ascii=not text.isprintable())
    )
