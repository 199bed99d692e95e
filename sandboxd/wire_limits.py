"""Limits on the daemon's sockets: the number of connections, and the time a client may take to send."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

_MOST_CONNECTIONS = 4096
_MOST_UNAUTHENTICATED = 256
_MOST_PREVIEW = 128


class WireLimits(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    max_connections: int | None = Field(default=None, ge=2)
    """Open TCP connections. The default is a quarter of the limit on open files, at most 4096. The unix socket has its
    own, equal share; the rest is for sandboxes, the engine and files."""
    max_unauthenticated: int | None = Field(default=None, ge=1)
    """Open TCP connections that have not sent a valid token. The default is a quarter of `max_connections`, at most
    256."""
    max_preview_connections: int | None = Field(default=None, ge=1)
    """Open TCP connections that show previews. The default is an eighth of `max_connections`, at most 128."""
    head_timeout_s: float = Field(default=10, gt=0)
    """How long, in seconds, a new connection may stay silent, and a request's line and headers may take to arrive."""
    body_timeout_s: float = Field(default=20, gt=0)
    """The window, in seconds, in which a request body must make progress."""
    body_min_bytes_per_s: int = Field(default=1024, ge=1)
    """The least average rate of a body in each window, except while the daemon itself pauses reading."""
    keep_alive_s: int = Field(default=75, ge=1)
    """How long, in seconds, a connection may stay idle between requests. The Python clients close theirs after 30 s."""
    ping_s: float = Field(default=20, gt=0)
    """How often, in seconds, the daemon pings the client of a WebSocket. One that is silent for three times as long is
    disconnected."""

    def tcp_connections(self, open_files: int) -> int:
        """Return how many TCP connections may be open under this limit on open files."""
        return self.max_connections or _quarter(open_files)

    def unix_connections(self, open_files: int) -> int:
        return _quarter(open_files)

    def unauthenticated(self, open_files: int) -> int:
        return self.max_unauthenticated or max(2, min(_MOST_UNAUTHENTICATED, self.tcp_connections(open_files) // 4))

    def guests(self, open_files: int) -> int:
        """Return how many TCP connections may show previews."""
        return self.max_preview_connections or max(2, min(_MOST_PREVIEW, self.tcp_connections(open_files) // 8))


def _quarter(open_files: int) -> int:
    return max(8, min(_MOST_CONNECTIONS, open_files // 4))
