"""Bounds on what the daemon reads from its sockets: how many connections, and how long a client may take to send."""

from __future__ import annotations

import resource

from pydantic import BaseModel, ConfigDict, Field

_MOST_CONNECTIONS = 4096
_MOST_UNAUTHENTICATED = 256


class WireLimits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    max_connections: int | None = Field(default=None, ge=2)
    """Open TCP connections. The default is a quarter of RLIMIT_NOFILE, at most 4096: the rest of the descriptors is for
    the unix socket, the engine, runners and files. The unix socket is not counted."""
    max_unauthenticated: int | None = Field(default=None, ge=1)
    """Open TCP connections that have not sent a valid token. The default is a quarter of the above, at most 256."""
    head_timeout_s: float = Field(default=10, gt=0)
    """How long a new connection may stay silent, and how long a request's line and headers may take to arrive."""
    body_timeout_s: float = Field(default=20, gt=0)
    """The window in which a request body must make progress."""
    body_min_bytes_per_s: int = Field(default=1024, ge=1)
    """The progress: the average rate of a body in each window, unless the daemon itself paused reading."""
    keep_alive_s: int = Field(default=75, ge=1)
    """How long a connection may stay idle between requests. The clients drop theirs after 30 s."""

    def connections(self) -> int:
        if self.max_connections is not None:
            return self.max_connections
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return _MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(_MOST_CONNECTIONS, soft // 4))

    def unauthenticated(self) -> int:
        return self.max_unauthenticated or max(2, min(_MOST_UNAUTHENTICATED, self.connections() // 4))
