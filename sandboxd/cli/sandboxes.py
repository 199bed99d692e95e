"""`create`, `ls`, `pause`, `resume`, `hibernate`, `rm`: sandboxes."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

import typer

from sandboxd.cli.connection import connected
from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Session, Tenant
from sandboxd.cli.output import fail, print_json, print_line, print_table
from sandboxd.errors import NotFound
from sandboxd.models.sandbox import Resume, SandboxView


def create(
    session: Annotated[str | None, typer.Argument(help="The session's id; a random one by default.")] = None,
    user: Annotated[str, typer.Option("--user", "-u", help="The user whose memory the sandbox shows.")] = "default",
    agent: Annotated[str | None, typer.Option(help="The agent that works in the sandbox.")] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="An image of the engine, or the variant dev or interpreter; the daemon's default if not given."
        ),
    ] = None,
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE; may be repeated.")] = None,
    memory_mb: Annotated[int | None, typer.Option(help="Memory limit in MiB.")] = None,
    cpus: Annotated[float | None, typer.Option(help="CPU limit; 0.5 is half a core.")] = None,
    pids: Annotated[int | None, typer.Option(help="Limit on processes and threads.")] = None,
    disk_mb: Annotated[int | None, typer.Option(help="Limit on the workspace's size in MiB.")] = None,
    idle_timeout: Annotated[
        float | None, typer.Option(help="Seconds without use until it hibernates; 0 means never.")
    ] = None,
    ttl: Annotated[float | None, typer.Option(help="Seconds until it hibernates even if it is in use.")] = None,
    resume: Annotated[
        str | None, typer.Option(help="auto: the next call resumes it. manual: only `sandboxd resume` does.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="NAME=VALUE; may be repeated.")] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="HOST[:PORT], *.HOST or preset:NAME that it may reach; may be repeated. `none` for nothing."),
    ] = None,
    allow_private: Annotated[
        list[str] | None,
        typer.Option(help="HOST[:PORT] that it may reach even at a private address; may be repeated."),
    ] = None,
    credential: Annotated[
        list[str] | None, typer.Option(help="A credential of the daemon that it may use; may be repeated.")
    ] = None,
    from_snapshot: Annotated[
        str | None, typer.Option(help="Begin with the files of this snapshot; `sandboxd snapshot ls` lists them.")
    ] = None,
    recreate: Annotated[
        bool,
        typer.Option(
            "--recreate",
            help="Replace the container of an existing sandbox; its files are kept, unless --from-snapshot is given.",
        ),
    ] = False,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Create a session's sandbox, or return the existing one.

    A sandbox that is hibernated or whose container died starts again with its files. The time limits, labels,
    --resume and network access of an existing one are changed; another image, environment or other limits need
    --recreate.

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
            env=parse_pairs(env, "--env") if env else None,
            limits=limits or None,
            idle_timeout_s=idle_timeout,
            ttl_s=ttl,
            resume=_parse_resume(resume),
            labels=parse_pairs(label, "--label") if label else None,
            network=_parse_network(allow or [], allow_private or [], credential or []),
            from_snapshot=from_snapshot,
            recreate=recreate,
        )
    if json:
        print_json(sandbox)
    else:
        print_line(sandbox.session)


def ls(
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="Only those with this label: NAME=VALUE; may be repeated.")
    ] = None,
    state: Annotated[str | None, typer.Option(help="Only those in this state: ready, hibernated, gone, ...")] = None,
    tenant: Tenant = "default",
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """List a tenant's sandboxes.

    Example: sandboxd ls --tenant acme --label team=search
    """
    with connected(daemon, tenant, json) as client:
        found = client.list_sandboxes(labels=parse_pairs(label, "--label"), state=state)
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
            " ".join(f"{name}={value}" for name, value in sandbox.labels.items()),
        )
        for sandbox in found
    ]
    print_table(("session", "user", "state", "cause", "engine", "container", "created", "labels"), rows)


def pause(session: Session, tenant: Tenant = "default", daemon: Daemon = DEFAULT_DAEMON, json: Json = False) -> None:
    """Freeze every process of a session's sandbox. Its memory is kept, and it takes no CPU time.

    Example: sandboxd pause demo
    """
    with connected(daemon, tenant, json, session=session) as client:
        _print_state(client.pause_sandbox(session), json)


def resume(session: Session, tenant: Tenant = "default", daemon: Daemon = DEFAULT_DAEMON, json: Json = False) -> None:
    """Let a paused sandbox continue, or start a hibernated one again with its files.

    Example: sandboxd resume demo
    """
    with connected(daemon, tenant, json, session=session) as client:
        _print_state(client.resume_sandbox(session), json)


def hibernate(
    session: Session, tenant: Tenant = "default", daemon: Daemon = DEFAULT_DAEMON, json: Json = False
) -> None:
    """Remove a sandbox's container with all its processes, and keep its files.

    Example: sandboxd hibernate demo
    """
    with connected(daemon, tenant, json, session=session) as client:
        _print_state(client.hibernate_sandbox(session), json)


def _print_state(sandbox: SandboxView, json: bool) -> None:
    if json:
        print_json(sandbox)
    else:
        print_line(f"{sandbox.session} is {sandbox.state}")


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


def parse_pairs(pairs: list[str] | None, option: str) -> dict[str, str]:
    """Return the values of an option that is given as NAME=VALUE."""
    parsed = {}
    for pair in pairs or ():
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint=option)
        parsed[name] = value
    return parsed


def _parse_network(
    allow: list[str], private: list[str], credentials: list[str]
) -> Literal["none"] | dict[str, Any] | None:
    """Return the network access that the options ask for; None if they say nothing of it."""
    if not (allow or private or credentials):
        return None
    if allow == ["none"] and not (private or credentials):
        return "none"
    items: list[str | dict[str, Any]] = [*allow]
    for text in private:
        host, separator, port = text.rpartition(":")
        is_port = bool(separator) and port.isascii() and port.isdecimal() and not host.endswith(":")
        items.append({"host": host, "port": int(port), "private": True} if is_port else {"host": text, "private": True})
    return {"allow": items, "credentials": credentials}


def _parse_resume(text: str | None) -> Resume | None:
    match text:
        case None | "auto" | "manual":
            return text
    raise typer.BadParameter("must be auto or manual", param_hint="--resume")
