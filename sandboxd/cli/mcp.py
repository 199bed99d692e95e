"""`mcp`: a session's tools and memory for an MCP client, over stdin and stdout."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Tenant
from sandboxd.cli.output import INTERRUPTED, fail
from sandboxd.client.errors import KNOWN_ERRORS
from sandboxd.errors import InvalidRequest

if TYPE_CHECKING:
    from sandboxd.mcp.binding import Binding


def mcp(
    session: Annotated[
        str | None, typer.Option("--session", "-s", help="The session to work in; a new one by default.")
    ] = None,
    user: Annotated[
        str | None, typer.Option("--user", "-u", help="The session's user; by default the one it has, else default.")
    ] = None,
    tenant: Tenant = "default",
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer only tools that change nothing.")] = False,
    allow_manage: Annotated[
        bool, typer.Option("--allow-manage", help="Also offer tools that create, fork, snapshot and remove sandboxes.")
    ] = False,
    rm: Annotated[
        bool, typer.Option("--rm", help="Remove the new session's sandbox with its files when the client leaves.")
    ] = False,
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Serve the Model Context Protocol on stdin and stdout, for one client.

    The sandbox is created by the first tool call. It is kept when the client leaves, and hibernates when it is idle;
    --rm removes it instead. With --json a failure is printed as JSON; the protocol always is.

    Example: claude mcp add sandbox -- sandboxd mcp --session research --user ada
    """
    import anyio

    from memo.ids import SessionId, TenantId, UserId
    from sandboxd.mcp.binding import Binding, ToolAccess, new_session

    try:
        if rm and session is not None:
            raise InvalidRequest("cannot remove a named session's sandbox at the end: give --rm or --session, not both")
        binding = Binding(
            TenantId(tenant),
            new_session() if session is None else SessionId(session),
            None if user is None else UserId(user),
            ToolAccess.of(read_only=read_only, manage=allow_manage),
        )
        anyio.run(_serve, daemon, binding, session is None, rm)
    except KNOWN_ERRORS as error:
        fail(error, json)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


async def _serve(daemon: Daemon, binding: Binding, is_new: bool, rm: bool) -> None:
    import anyio

    from sandboxd.client import AsyncClient

    async with AsyncClient(daemon.socket, url=daemon.url, token=daemon.token, tenant=binding.tenant) as client:
        await client.health()  # before the SDK is loaded: without a daemon, say so at once
        from sandboxd.mcp.stdio import serve_stdio

        if is_new:
            print(f"sandboxd: this is session {binding.session}", file=sys.stderr, flush=True)
        try:
            await serve_stdio(client, binding)
        finally:
            if rm and binding.session is not None:
                with anyio.CancelScope(shield=True):
                    await client.destroy_sandbox(binding.session, missing_ok=True)
