"""`gc`: reconcile registry, engine and disk now instead of at the next start."""

from __future__ import annotations

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json
from sandboxd.cli.output import print_json, print_line


def collect(daemon: Daemon = DEFAULT_DAEMON, json: Json = False) -> None:
    """Remove containers, directories and records that do not belong to a sandbox. Workspaces are kept.

    Example: sandboxd gc
    """
    with connected(daemon, "default", json) as client:
        report = client.collect_garbage()
    if json:
        print_json(report)
        return
    for name, value in report.items():
        print_line(f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
