"""Where a container engine listens: the address that is configured, or the first socket in the usual places.

It looks and never connects; whether anything answers there is for the engine that uses it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineAddress:
    url: str
    is_configured: bool
    """Named by DOCKER_HOST, not merely found."""

    def __str__(self) -> str:
        return f"{self.url} (from DOCKER_HOST)" if self.is_configured else self.url


def find_address() -> EngineAddress | None:
    """Return where an engine should be, whether or not one answers. None: this host has no engine's socket."""
    if url := os.environ.get("DOCKER_HOST"):
        return EngineAddress(url, is_configured=True)
    places = ["/var/run/docker.sock", "/run/docker.sock"]
    if runtime_dir := os.environ.get("XDG_RUNTIME_DIR"):
        places += [f"{runtime_dir}/docker.sock", f"{runtime_dir}/podman/podman.sock"]
    places.append("/run/podman/podman.sock")
    for place in places:
        with suppress(OSError):
            if stat.S_ISSOCK(os.stat(place).st_mode):
                return EngineAddress(f"unix://{place}", is_configured=False)
    return None


def find_socket() -> str | None:
    """The address of the engine on this host: DOCKER_HOST, or the first socket found in the usual places."""
    address = find_address()
    return None if address is None else address.url
