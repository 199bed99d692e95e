"""The contract of an engine: launch, remove, pause, inspect, find by label, events, stats.

An engine handles containers only, not sessions, mirrors or tools; the daemon gives it opaque names and labels.
`tests/conformance/test_engine.py` checks every engine against this contract.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from sandboxd.errors import Cause
from sandboxd.limits import Limits
from sandboxd.models.sandbox import Stats

LABEL_INSTANCE = "sandboxd.instance"
"""The label with the owner of a container: the id of a daemon's data directory."""
LABEL_SANDBOX = "sandboxd.sandbox"
"""The label with the opaque id of the container's sandbox."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A host directory mounted in the container. Never a file: a rename over a mounted file stays invisible."""

    source: Path
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What to launch. Values that are the same for every sandbox are in `spec.HARDENING` instead."""

    name: str
    image: str
    command: tuple[str, ...]
    uid: int
    gid: int
    labels: Mapping[str, str]
    mounts: tuple[Mount, ...]
    limits: Limits
    env: Mapping[str, str] = field(default_factory=dict)
    runtime: str | None = None
    tmp_exec: bool = False
    """Whether programs may run from /tmp."""


@dataclass(frozen=True, slots=True)
class Container:
    """What the engine reports about one container now."""

    id: str
    name: str
    labels: Mapping[str, str]
    running: bool
    pid: int | None = None
    exit_code: int | None = None
    cause: Cause | None = None
    """Why it is dead; None while it runs."""
    paused: bool = False
    """Whether it is frozen: it runs, but gets no CPU time until it is unpaused."""


@dataclass(frozen=True, slots=True)
class ContainerDied:
    container_id: str
    cause: Cause
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class ContainerPaused:
    container_id: str


@dataclass(frozen=True, slots=True)
class ContainerResumed:
    container_id: str


@dataclass(frozen=True, slots=True)
class Resynced:
    """The event stream was attached, for the first time or again: compare with `find` once."""


EngineEvent = ContainerDied | ContainerPaused | ContainerResumed | Resynced


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `sandboxd doctor`."""

    subject: str
    verdict: Literal["ok", "weak", "missing"]
    detail: str
    advice: str = ""


class Engine(Protocol):
    """Every method may raise EngineUnavailable (no answer) or EngineRefused (the engine refused)."""

    name: str

    async def launch(self, spec: ContainerSpec) -> Container:
        """Start a hardened container and return it running. If this raises, nothing is left behind.

        It waits as long as the container makes progress; the caller sets a deadline by cancelling.
        """

    async def remove(self, container_id: str) -> None:
        """Kill and remove the container. A container that is already gone is not an error."""

    async def pause(self, container_id: str) -> None:
        """Freeze every process of a running container. One that is already frozen is not an error."""

    async def resume(self, container_id: str) -> None:
        """Let every process of a frozen container continue. One that is not frozen is not an error."""

    async def inspect(self, container_id: str) -> Container | None:
        """Return the container, dead or alive, or None if the engine does not have it."""

    async def find(self, labels: Mapping[str, str]) -> list[Container]:
        """Return every container, dead or alive, that has all these labels."""

    def events(self) -> AsyncIterator[EngineEvent]:
        """Yield Resynced whenever the stream is attached, then every death, pause and resumption. Never end."""

    async def stats(self, container_id: str) -> Stats:
        """Return the container's current resource usage."""

    async def has_image(self, image: str) -> bool:
        """Return whether a container can be launched from this image without fetching anything."""

    async def find_runtime(self, name: str | None) -> str | None:
        """Return the runtime that containers get for this name, or by default; None if the engine has no runtimes.

        Raise EngineRefused, naming the available ones, if it does not have this one.
        """

    async def diagnose(self) -> list[Finding]:
        """Return how well this engine isolates on this host, for `sandboxd doctor`."""

    async def aclose(self) -> None:
        """Close connections and threads. Containers keep running."""
