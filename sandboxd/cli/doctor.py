"""`doctor`: the state of the running daemon, and what this machine offers with or without one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sandboxd.cli.options import Json, Socket
from sandboxd.cli.output import FAILED, fail, print_json, print_line, print_table
from sandboxd.cli.serve import DataOption, EngineOption, StoreOption, load_settings
from sandboxd.client.errors import DaemonUnreachable

if TYPE_CHECKING:
    from sandboxd.daemon.doctor import DaemonReport
    from sandboxd.engine.protocol import Finding


def examine(
    data: DataOption = None,
    socket: Socket = None,
    engine: EngineOption = None,
    store: StoreOption = None,
    json: Json = False,
) -> None:
    """Check the daemon and how well this host isolates sandboxes, and say what to improve.

    A running daemon reports its own state. Without one, or with --data, --engine or --store, what a daemon would use is
    tested here. Exit code 1 if something is missing.

    Example: sandboxd doctor    or    sandboxd doctor --store file:///srv/memo
    """
    settings = load_settings(json, data=data, socket=socket, engine=engine, store=store)
    import anyio

    from sandboxd.daemon.doctor import examine as examine_host

    is_tryout = data is not None or engine is not None or store is not None
    daemon = None if is_tryout else _ask(settings.socket, is_required=socket is not None, as_json=json)
    findings = anyio.run(examine_host, settings, daemon)
    _print(findings, json)
    raise typer.Exit(FAILED if any(finding.verdict == "missing" for finding in findings) else 0)


def _ask(socket: Path, *, is_required: bool, as_json: bool) -> DaemonReport | None:
    """Return the daemon's report; None if no daemon runs and the command line did not name one."""
    from sandboxd.daemon.doctor import ask_daemon

    try:
        return ask_daemon(socket)
    except DaemonUnreachable as error:
        if is_required or isinstance(error.__cause__, PermissionError):
            fail(error, as_json)
        return None


def _print(findings: list[Finding], as_json: bool) -> None:
    if as_json:
        print_json({"items": [asdict(finding) for finding in findings]})
        return
    rows = [(finding.verdict, finding.subject, finding.detail) for finding in findings]
    print_table(("verdict", "subject", "detail"), rows)
    for finding in findings:
        if finding.advice:
            print_line(f"{finding.subject}: {finding.advice}")
