"""The budget of open files: shares for the daemon's own work, its connections and the sandboxes.

Each share has its own limit, so none can take the descriptors of another: with every sandbox running and every
connection taken, calls, removals and health checks still work.
"""

from __future__ import annotations

import resource

from sandboxd.wire_limits import WireLimits

RESERVE = 160
"""Descriptors reserved for the daemon's own work. Measured: 33 at rest with bubblewrap and up to 62 with Docker, whose
client keeps connections; a bubblewrap launch briefly needs up to 20; the rest is for files that worker threads open."""
LAUNCHES_AT_ONCE = 8
"""The most containers launched concurrently, because each launch takes descriptors from the reserve."""
_MOST_OPEN_FILES = 1_048_576
_PER_SANDBOX = {"bubblewrap": 2}
"""The runner's connection, and with bubblewrap a pidfd, which reports the container's death."""


def raise_open_files() -> None:
    """Raise the soft limit on open files to the hard one. Containers have their own limit."""
    hard = reachable_open_files()
    if soft_open_files() < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def soft_open_files() -> int:
    return _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def reachable_open_files() -> int:
    """Return the limit on open files that a daemon started here would set for itself."""
    return max(soft_open_files(), _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def carried_sandboxes(open_files: int, wire: WireLimits, engine: str, *, has_tcp: bool) -> int:
    """Return how many sandboxes of an engine fit within this limit on open files."""
    connections = wire.unix_connections(open_files) + (wire.tcp_connections(open_files) if has_tcp else 0)
    return max(0, open_files - RESERVE - connections) // _PER_SANDBOX.get(engine, 1)


def _bounded(limit: int) -> int:
    """Return a limit as a number, capped at the kernel's usual maximum, which also stands for unlimited."""
    return _MOST_OPEN_FILES if limit == resource.RLIM_INFINITY else min(limit, _MOST_OPEN_FILES)
