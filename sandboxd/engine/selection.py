"""Selects the engine of this daemon: the configured one, or the best available on this host. Keeps no state.

An engine that is configured or present but does not answer is refused, not replaced: bubblewrap isolates less than
Docker, and a weaker sandbox must be the operator's decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import structlog

from sandboxd.engine.address import EngineAddress, find_address
from sandboxd.engine.protocol import Engine
from sandboxd.errors import DependencyError, EngineUnavailable

EngineChoice = Literal["auto", "docker", "bubblewrap"]

_ASKED = "the settings name it"

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Selection:
    engine: Engine
    why: str
    is_fallback: bool = False
    """Whether an engine that isolates better is present but did not answer."""


async def open_engine(choice: EngineChoice, state_dir: Path, *, fallback: bool = False) -> Engine:
    """Return an engine that answers and log the choice. Raise EngineUnavailable with the next step if none does."""
    selection = await select_engine(choice, state_dir, fallback=fallback)
    log = _log.warning if selection.is_fallback else _log.info
    log("engine selected", engine=selection.engine.name, why=selection.why)
    return selection.engine


async def select_engine(choice: EngineChoice, state_dir: Path, *, fallback: bool = False) -> Selection:
    """`fallback` lets `auto` use bubblewrap even if a configured or present engine does not answer."""
    address = find_address()
    if choice == "bubblewrap":
        return Selection(_open_bubblewrap(state_dir), _ASKED)
    if choice == "docker":
        return Selection(await _open_docker(address, state_dir, "give another --engine"), _ASKED)
    if address is None:
        try:
            return Selection(_open_bubblewrap(state_dir), "this host has no Docker or Podman socket")
        except EngineUnavailable as error:
            raise EngineUnavailable(
                "cannot open an engine: this host has no Docker or Podman socket, and bubblewrap does not work "
                f"({_reason(error)}); install and start Docker or Podman, or repair bubblewrap"
            ) from None
    try:
        docker = await _open_docker(address, state_dir, "accept weaker isolation with --engine bubblewrap")
        return Selection(docker, f"DOCKER_HOST names {address.url}" if address.is_configured else f"{address} answers")
    except DependencyError as error:
        if not fallback:
            raise
        return Selection(_open_bubblewrap(state_dir), f"engine_fallback is on, and {_reason(error)}", is_fallback=True)


def _reason(error: DependencyError) -> str:
    return str(error).partition(";")[0].replace("cannot ", "could not ", 1)


async def _open_docker(address: EngineAddress | None, state_dir: Path, otherwise: str) -> Engine:
    from sandboxd.engine.docker import DockerEngine  # slow to import, and bubblewrap never needs it

    engine = DockerEngine(state_dir)
    try:
        await engine.ping()
    except EngineUnavailable as error:
        await engine.aclose()
        if address is None:
            raise EngineUnavailable(
                f"cannot reach the engine: this host has no Docker or Podman socket; start one, or {otherwise}"
            ) from None
        _, _, reason = str(error).partition(": ")
        step = "start it, correct DOCKER_HOST" if address.is_configured else "start it"
        if "Permission denied" in reason:
            step = "run `sudo usermod -aG docker $USER` and log in again"
        raise EngineUnavailable(f"cannot reach the engine at {address}: {reason}; {step}, or {otherwise}") from None
    except DependencyError:
        await engine.aclose()
        raise
    return engine


def _open_bubblewrap(state_dir: Path) -> Engine:
    from sandboxd.engine.bubblewrap import BubblewrapEngine

    return BubblewrapEngine(state_dir)
