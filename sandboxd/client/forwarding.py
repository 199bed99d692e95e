"""What the async and the synchronous forwarder share: where they listen, and their errors. It does no I/O."""

from __future__ import annotations

import os

from sandboxd.errors import InvalidRequest, SandboxdError

LOCAL_HOST = "127.0.0.1"
PIECE_BYTES = 65_536
MAX_CONNECTIONS = 64
"""As many WebSockets as a session may have. Further connections wait to be accepted."""
KEEP_ALIVE_S = 15.0
"""How often to tell the daemon that this end exists, while a local program does not read."""


class LocalPortTaken(SandboxdError):
    """The local port cannot be listened on."""

    code = "forward.local_port"


def check_local_port(port: int) -> None:
    if not 0 <= port <= 65_535:
        raise InvalidRequest("cannot listen on this local port: it must be a number from 0 to 65535")


def not_listening(port: int, error: OSError) -> LocalPortTaken:
    return LocalPortTaken(
        f"cannot listen on {LOCAL_HOST}:{port}: {os.strerror(error.errno or 0)}; choose another local port"
    )
