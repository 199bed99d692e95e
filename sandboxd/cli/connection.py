"""A client for one command; its errors become a sentence and an exit code."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager

from sandboxd.cli.options import Daemon
from sandboxd.cli.output import fail
from sandboxd.client import Client
from sandboxd.client.errors import KNOWN_ERRORS
from sandboxd.errors import Gone


@contextmanager
def connected(
    daemon: Daemon,
    tenant: str,
    as_json: bool,
    failure_code: int | None = None,
    *,
    session: str | None = None,
) -> Iterator[Client]:
    """Yield a client. A command on one session passes its name, for more helpful errors."""
    with Client(daemon.socket, url=daemon.url, token=daemon.token, tenant=tenant) as client:
        try:
            yield client
        except Gone as error:
            fail(error, as_json, failure_code, _restart(client, session, daemon))
        except KNOWN_ERRORS as error:
            fail(error, as_json, failure_code)


def _restart(client: Client, session: str | None, daemon: Daemon) -> str | None:
    """Return the command that restarts a dead sandbox with its files; None if it is being removed."""
    try:
        sandbox = None if session is None else client.get_sandbox(session)
    except KNOWN_ERRORS:
        return None
    if sandbox is None or sandbox.state == "destroying":
        return None
    words = ["sandboxd", "create", sandbox.session, "--user", sandbox.user, "--tenant", sandbox.tenant]
    return f"Restart it with its files: `{shlex.join([*words, *daemon.words])}`"
