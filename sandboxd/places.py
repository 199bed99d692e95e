"""Where things are by default: the data directory and the daemon's socket. Reads the environment, touches nothing."""

from __future__ import annotations

import os
from pathlib import Path


def default_data() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/sandboxd")
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "sandboxd"


def default_socket() -> Path:
    if os.geteuid() == 0:
        return Path("/run/sandboxd.sock")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "sandboxd.sock" if runtime else default_data() / "sandboxd.sock"
