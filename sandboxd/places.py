"""Default paths of the data directory and the daemon's socket. Reads the environment and changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

from sandboxd.errors import InvalidRequest


def default_data() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/sandboxd")
    if named := os.environ.get("XDG_DATA_HOME"):
        return Path(named) / "sandboxd"
    home = home_directory()
    if home is None:
        raise InvalidRequest(
            "cannot choose the data directory and the socket: this user has no home directory; "
            "give --data and --socket, or set HOME"
        )
    return home / ".local" / "share" / "sandboxd"


def home_directory() -> Path | None:
    """Return this user's home; None for a user without an account and without HOME."""
    try:
        return Path.home()
    except RuntimeError:
        return None


def default_socket() -> Path:
    if os.geteuid() == 0:
        return Path("/run/sandboxd.sock")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "sandboxd.sock" if runtime else default_data() / "sandboxd.sock"
