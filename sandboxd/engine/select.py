"""Which engine this daemon uses: the one asked for, or the best that answers. It opens one and keeps none."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sandboxd.engine.protocol import Engine
from sandboxd.errors import DependencyError, EngineUnavailable

EngineChoice = Literal["auto", "docker", "bubblewrap"]


async def open_engine(choice: EngineChoice, state_dir: Path) -> Engine:
    """Return an engine that answered. Raise EngineUnavailable, with the next step, when none does."""
    if choice == "docker":
        return await _open_docker()
    if choice == "bubblewrap":
        return await _open_bubblewrap(state_dir)
    try:
        return await _open_docker()
    except EngineUnavailable as no_docker:
        try:
            return await _open_bubblewrap(state_dir)
        except EngineUnavailable as no_bubblewrap:
            raise EngineUnavailable(
                f"cannot open an engine: no Docker or Podman socket answers ({_reason(no_docker)}) and bubblewrap "
                f"does not work ({_reason(no_bubblewrap)}); run `make engine`"
            ) from None


def _reason(error: EngineUnavailable) -> str:
    return str(error).removeprefix("cannot ")


async def _open_docker() -> Engine:
    from sandboxd.engine.docker import DockerEngine  # slow to import, and bubblewrap never needs it

    engine = DockerEngine()
    try:
        await engine.ping()
    except DependencyError:
        await engine.aclose()
        raise
    return engine


async def _open_bubblewrap(state_dir: Path) -> Engine:
    from sandboxd.engine.bubblewrap import BubblewrapEngine

    return BubblewrapEngine(state_dir)
