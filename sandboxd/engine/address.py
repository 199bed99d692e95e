"""The address of a container engine: the configured one, or the first socket found in the usual places.

It never connects; the engine that uses the address discovers whether anything answers.
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
    """Whether DOCKER_HOST names it; otherwise it was found in a usual place."""

    def __str__(self) -> str:
        return f"{self.url} (from DOCKER_HOST)" if self.is_configured else self.url


def find_address() -> EngineAddress | None:
    """Return the address of an engine, whether or not it answers; None if this host has no engine socket."""
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
