"""`events`: the daemon's events."""

from __future__ import annotations

from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json
from sandboxd.cli.output import print_json, print_line
from sandboxd.models.event import Event


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Also print new events, until Ctrl-C.")] = False,
    after: Annotated[int | None, typer.Option(help="Only events with a higher id.")] = None,
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Print recent events, one per line.

    Example: sandboxd events --follow --json
    """
    with connected(daemon, "default", json) as client:
        try:
            for event in client.events(after, follow=follow):
                _print(event, json)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None  # the usual way to stop following


def _print(event: Event, as_json: bool) -> None:
    if as_json:
        print_json({"id": event.id, "kind": event.kind, "at": event.at, **event.fields})
        return
    fields = " ".join(f"{name}={value}" for name, value in event.fields.items() if value is not None)
    print_line(f"{event.at.isoformat(timespec='milliseconds')}  {event.kind:<10} {fields}")
