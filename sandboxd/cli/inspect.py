"""`inspect`: the inspector's page in a browser on this machine."""

from __future__ import annotations

import signal
from typing import Annotated

import typer

from sandboxd.cli.options import DEFAULT_DAEMON, Daemon, Json, Tenant
from sandboxd.cli.output import fail, print_json, print_line
from sandboxd.client.errors import KNOWN_ERRORS


def inspect(
    session: Annotated[str | None, typer.Argument(help="Show this session; the overview by default.")] = None,
    tenant: Tenant = "default",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port here; a free one by default.")] = 0,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the link in this user's browser.")] = False,
    daemon: Daemon = DEFAULT_DAEMON,
    json: Json = False,
) -> None:
    """Show what agents did and what they remember, in a browser, until Ctrl-C.

    It prints a link to a port on 127.0.0.1. The link works once, within two minutes: the browser that opens it first is
    the one that is let in.

    Example: sandboxd inspect demo --open
    """
    import anyio

    try:
        anyio.run(_serve, daemon, tenant, session, port, open_browser, json)
    except KNOWN_ERRORS as error:
        fail(error, json)


async def _serve(
    daemon: Daemon, tenant: str, session: str | None, port: int, open_browser: bool, as_json: bool
) -> None:
    import anyio

    from sandboxd.cli.browser_door import BrowserDoor, deep_link
    from sandboxd.client import AsyncClient
    from sandboxd.client.address import find_address

    address = find_address(daemon.socket, daemon.url, daemon.token)
    async with AsyncClient(daemon.socket, url=daemon.url, token=daemon.token, tenant=tenant) as client:
        await client.health()
        if session is not None:
            await client.inspect_session(session)
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with BrowserDoor(address, port=port, fragment=deep_link(tenant, session)) as door:
            if as_json:
                print_json({"url": door.link, "port": door.port})
            else:
                print_line(door.link)
            if open_browser:
                import webbrowser

                await anyio.to_thread.run_sync(webbrowser.open, door.link, abandon_on_cancel=True)
            async for _ in signals:
                return
