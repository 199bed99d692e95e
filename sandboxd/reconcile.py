"""What to do about the difference between the registry, the engine and the disk. Pure: it plans, it never acts.

The registry holds intents, so whatever a crash left behind is either known (finish or undo it) or unknown
(an orphan: remove it). Planning twice, or after a plan was only half carried out, gives a plan that ends in
the same place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sandboxd.engine.protocol import Container
from sandboxd.errors import Cause
from sandboxd.lifecycle import Record, State


@dataclass(frozen=True, slots=True)
class Adopt:
    """The container runs, and its caller had an answer or it waits for one: take it over as it is."""

    record: Record


@dataclass(frozen=True, slots=True)
class MarkGone:
    """The container is dead, or was never acknowledged: keep the workspace, say why."""

    record: Record
    cause: Cause


@dataclass(frozen=True, slots=True)
class FinishDestroy:
    """The sandbox was being destroyed, or its create was never acknowledged: leave nothing."""

    record: Record


@dataclass(frozen=True, slots=True)
class RemoveContainer:
    container: str


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """Directories of a sandbox that no record knows."""

    id: str


Action = Adopt | MarkGone | FinishDestroy | RemoveContainer | RemoveFiles


def plan(records: Iterable[Record], containers: Iterable[Container], ids_on_disk: Iterable[str]) -> list[Action]:
    """Plan what makes the three agree at a start, when nothing of ours is under way."""
    by_id = {container.id: container for container in containers}
    known: set[str] = set()
    kept: set[str] = set()
    actions: list[Action] = []
    for record in records:
        known.add(record.id)
        container = by_id.get(record.container) if record.container else None
        match record.state:
            case State.READY | State.PAUSED | State.WARM if container is not None and container.running:
                kept.add(container.id)
                actions.append(Adopt(record))
            case State.READY | State.PAUSED:
                cause = (container.cause if container else None) or "engine"
                actions.append(MarkGone(record, cause))
            case State.CREATING | State.STARTING if record.generation > 1:
                actions.append(MarkGone(record, "engine"))
            case State.CREATING | State.STARTING | State.WARM | State.DESTROYING | State.REMOVED:
                actions.append(FinishDestroy(record))
            case State.GONE:
                pass
    orphans = [RemoveContainer(container_id) for container_id in by_id if container_id not in kept]
    strays = [RemoveFiles(sandbox_id) for sandbox_id in sorted(set(ids_on_disk) - known)]
    # Containers go first: a directory that a container still writes cannot be removed.
    return [*orphans, *actions, *strays]
