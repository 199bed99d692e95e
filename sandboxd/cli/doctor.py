"""`doctor`: the state of the running daemon, and what this machine offers with or without one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json
from sandboxd.cli.output import FAILED, fail, print_json, print_line, print_table
from sandboxd.cli.serve import DataOption, EngineOption, StoreOption, load_settings
from sandboxd.client.address import Address, find_address
from sandboxd.client.errors import DaemonUnreachable

if TYPE_CHECKING:
    from sandboxd.daemon.doctor import DaemonReport
    from sandboxd.engine.protocol import Finding


def examine(
    data: DataOption = None,
    daemon: Daemon = DEFAULT_DAEMON,
    engine: EngineOption = None,
    store: StoreOption = None,
    json: Json = False,
) -> None:
    """Check the daemon and how well this host isolates sandboxes, and say what to improve.

    A running daemon reports its own state; with --url that is all, because it may run on another host. Without a
    daemon, or with --data, --engine or --store, what a daemon would use is tested here. Exit code 1 if something is
    missing.

    Example: sandboxd doctor    or    sandboxd doctor --store file:///srv/memo
    """
    is_tryout = data is not None or engine is not None or store is not None
    if is_tryout and daemon.url is not None:
        raise typer.BadParameter("--data, --engine and --store are tested on this host", param_hint="--url")
    settings = load_settings(json, data=data, socket=daemon.socket, engine=engine, store=store)
    address = find_address(daemon.socket, daemon.url, daemon.token)
    is_remote = address.socket is None and not is_tryout
    if not is_remote:
        address = Address(socket=settings.socket)
    is_named = is_remote or daemon.socket is not None
    report = None if is_tryout else _ask(address, is_required=is_named, as_json=json)
    if is_remote and report is not None:
        findings = list(report.findings)
    else:
        import anyio

        from sandboxd.daemon.doctor import examine as examine_host

        findings = anyio.run(examine_host, settings, report)
    _print(findings, json)
    raise typer.Exit(FAILED if any(finding.verdict == "missing" for finding in findings) else 0)


def _ask(address: Address, *, is_required: bool, as_json: bool) -> DaemonReport | None:
    """Return the daemon's report; None if no daemon runs and the command line did not name one."""
    from sandboxd.daemon.doctor import ask_daemon

    try:
        return ask_daemon(address)
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
