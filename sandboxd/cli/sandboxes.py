"""`create`, `ls`, `rm`: sandboxes."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Tenant
from sandboxd.cli.output import fail, print_json, print_line, print_table
from sandboxd.errors import NotFound


def create(
    session: Annotated[str | None, typer.Argument(help="The session's id; a random one by default.")] = None,
    user: Annotated[str, typer.Option("--user", "-u", help="The user whose memory the sandbox shows.")] = "default",
    agent: Annotated[str | None, typer.Option(help="The agent that works in the sandbox.")] = None,
    image: Annotated[str | None, typer.Option(help="The container image; the daemon's default if not given.")] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE; may be repeated.")] = None,
    memory_mb: Annotated[int | None, typer.Option(help="Memory limit in MiB.")] = None,
    cpus: Annotated[float | None, typer.Option(help="CPU limit; 0.5 is half a core.")] = None,
    pids: Annotated[int | None, typer.Option(help="Limit on processes and threads.")] = None,
    disk_mb: Annotated[int | None, typer.Option(help="Limit on the workspace's size in MiB.")] = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Create a session's sandbox, or return the existing one. A sandbox whose container died restarts with its files.

    Example: sandboxd create demo --user alice --memory-mb 256
    """
    given = {"memory_mb": memory_mb, "cpus": cpus, "pids": pids, "disk_mb": disk_mb}
    limits = {name: value for name, value in given.items() if value is not None}
    with connected(daemon, tenant, json) as client:
        sandbox = client.ensure_sandbox(
            session or f"s-{secrets.token_hex(4)}",
            user,
            agent=agent,
            image=image,
            env=parse_env(env),
            limits=limits or None,
        )
    if json:
        print_json(sandbox)
    else:
        print_line(sandbox.session)


def ls(tenant: Tenant = "default", daemon: Daemon = DEFAULT_DAEMON, json: Json = False) -> None:
    """List a tenant's sandboxes.

    Example: sandboxd ls --tenant acme
    """
    with connected(daemon, tenant, json) as client:
        found = client.list_sandboxes()
    if json:
        print_json({"items": found})
        return
    rows = [
        (
            sandbox.session,
            sandbox.user,
            sandbox.state,
            sandbox.cause or "",
            sandbox.engine,
            (sandbox.container or "")[:12],
            sandbox.created_at.isoformat(timespec="seconds"),
        )
        for sandbox in found
    ]
    print_table(("session", "user", "state", "cause", "engine", "container", "created"), rows)


def rm(
    sessions: Annotated[list[str], typer.Argument(help="The sessions whose sandboxes to remove.")],
    missing_ok: Annotated[bool, typer.Option("--missing-ok", help="Do not fail if a sandbox does not exist.")] = False,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Remove sandboxes with every file in their workspaces. Memory is kept.

    To restart a sandbox whose container died, with its files, use `sandboxd create` instead.

    Example: sandboxd rm demo
    """
    with connected(daemon, tenant, json) as client:
        for session in sessions:
            try:
                client.destroy_sandbox(session, missing_ok=missing_ok)
            except NotFound:
                step = "`sandboxd ls` lists the sandboxes of a tenant."
                fail(NotFound(f"cannot remove the sandbox of {session}: it does not exist"), json, next_step=step)
            if json:
                print_json({"tenant": tenant, "session": session, "removed": True})
            else:
                print_line(session)


def parse_env(pairs: list[str] | None) -> dict[str, str]:
    env = {}
    for pair in pairs or ():
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--env")
        env[name] = value
    return env
