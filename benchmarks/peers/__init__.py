"""The alternatives to sandboxd, each behind one small contract, so that all of them do the same jobs.

A peer runs in its own process (`worker`) with its own interpreter; it is never a dependency of the product. A feature
that a peer lacks raises `Absent`, so every gap has a stated reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable


class Absent(Exception):
    """The peer cannot do this here; the message gives the reason in one sentence."""


class CommandFailed(Exception):
    """A command of the benchmark did not exit with 0, so the figure would be invalid."""


class Session(Protocol):
    """One sandbox of a peer."""

    @property
    def root(self) -> str:
        """The directory, as a command sees it, in which files may be written."""

    @property
    def container(self) -> str | None:
        """The engine's id, if there is a container."""

    async def run(self, command: Sequence[str]) -> str:
        """Run a command to its end and return its output. Raise CommandFailed if it did not exit with 0."""

    async def write(self, path: str, content: bytes) -> None:
        """Replace a file."""

    async def read(self, path: str) -> bytes:
        """Return a whole file."""

    async def close(self) -> None:
        """Leave nothing behind."""


@runtime_checkable
class WithTools(Protocol):
    """A session with native calls for an agent's tools, instead of commands."""

    async def edit(self, path: str, old: str, new: str) -> None: ...

    async def grep(self, pattern: str, path: str) -> None: ...

    async def glob(self, pattern: str, path: str) -> None: ...


class Peer(Protocol):
    async def prepare(self, name: str) -> None:
        """Prepare the content of the session with this name; never part of a measured time."""

    async def settle(self) -> None:
        """Wait for background work to finish, which would otherwise affect the figures of the next contender."""

    async def open(self, name: str) -> Session:
        """Create a sandbox."""


class NothingBeforehand:
    """A peer whose sessions start empty and need no cleanup."""

    async def prepare(self, name: str) -> None:
        pass

    async def settle(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Options:
    """The start message of a worker."""

    image: str
    directory: Path
    label: str
    """`name=value`, the label of every container that a peer creates, so that none can be left behind."""
    pooled: bool = False
    socket: Path | None = None
    """Where our own daemon listens."""


class PeerModule(Protocol):
    def open_peer(self, options: Options) -> AbstractAsyncContextManager[Peer]:
        """Start what all sessions share, and stop it at the end."""


Kind = Literal["ours", "container", "process", "bare"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the comparison."""

    name: str
    module: str
    kind: Kind
    is_foreign: bool = False
    """Whether it is installed in the peers' environment instead of the product's."""
    pooled: bool = False


ENTRIES = (
    Entry("sandboxd", "ours", "ours"),
    Entry("sandboxd, pool", "ours", "ours", pooled=True),
    Entry("sandboxd, pool, unseen texts", "ours_unseen", "ours", pooled=True),
    Entry("swe-rex", "swe_rex", "container", is_foreign=True),
    Entry("llm-sandbox", "llm_sandbox_docker", "container", is_foreign=True),
    Entry("llm-sandbox, pool", "llm_sandbox_docker", "container", is_foreign=True, pooled=True),
    Entry("openai-agents", "openai_agents", "container", is_foreign=True),
    Entry("inspect-ai", "inspect_docker", "container", is_foreign=True),
    Entry("docker exec, CLI", "docker_cli", "container"),
    Entry("docker exec, SDK", "docker_sdk", "container"),
    Entry("docker exec, raw API", "docker_raw", "container"),
    Entry("sandbox-runtime", "sandbox_runtime", "process"),
    Entry("bubblewrap", "bubblewrap", "process"),
    Entry("subprocess", "bare_subprocess", "bare"),
    Entry("posix_spawn", "posix_spawn", "bare"),
)

BASELINE = "posix_spawn"


def pick(names: Sequence[str]) -> list[Entry]:
    """Return ours, the baseline, and the peers whose name begins with one of these, or "all" or "none"."""
    for name in names:
        if name not in {"all", "none"} and not any(entry.name.startswith(name) for entry in ENTRIES):
            known = ", ".join(dict.fromkeys(entry.name.partition(",")[0] for entry in ENTRIES))
            raise ValueError(f"cannot find the peer {name}: choose from {known}")
    if "all" in names:
        return list(ENTRIES)
    wanted = () if "none" in names else tuple(names)
    return [e for e in ENTRIES if e.kind == "ours" or e.name == BASELINE or e.name.startswith(wanted)]
