"""Plans how to reconcile the registry, the engine and the disk. Pure: it never acts.

The registry has intents, so whatever a crash left behind is either known (finish or undo it) or unknown (an orphan:
remove it, unless it is a workspace). Planning twice, or after a plan was only partly carried out, leads to the same
state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sandboxd.engine.protocol import Container
from sandboxd.errors import Cause
from sandboxd.sandboxes.lifecycle import Record, State


@dataclass(frozen=True, slots=True)
class Adopt:
    """The container runs, and its create was acknowledged or it is warm: adopt it unchanged."""

    record: Record


@dataclass(frozen=True, slots=True)
class MarkGone:
    """The container is dead, or was never acknowledged: keep the workspace and record the cause."""

    record: Record
    cause: Cause


@dataclass(frozen=True, slots=True)
class Rest:
    """The sandbox hibernates: leave only its workspace, as files on disk."""

    record: Record


@dataclass(frozen=True, slots=True)
class FinishDestroy:
    """The sandbox was being destroyed, or its create was never acknowledged: leave nothing."""

    record: Record


@dataclass(frozen=True, slots=True)
class RemoveContainer:
    container: str


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """A socket directory and a mirror without a record. Both can be rebuilt."""

    id: str


@dataclass(frozen=True, slots=True)
class KeepWorkspace:
    """A workspace without a record.

    A workspace is made after its record and removed before it, so its record was lost. No request removed it, so it
    stays. (I14)
    """

    id: str


Action = Adopt | MarkGone | Rest | FinishDestroy | RemoveContainer | RemoveFiles | KeepWorkspace


def plan(
    records: Iterable[Record],
    containers: Iterable[Container],
    scratch: Iterable[str],
    workspaces: Iterable[str],
    stale: Collection[str] = (),
) -> list[Action]:
    """Plan what makes registry, engine and disk agree, for sandboxes that have no move under way.

    `scratch` are the ids that have a socket directory or a mirror on disk, and `workspaces` those that have a
    workspace. `stale` are the containers whose mirror was removed while they showed it: they cannot show a new one, and
    an empty directory must not be mistaken for an empty memory (I4), so they are stopped.
    """
    by_id = {container.id: container for container in containers}
    on_disk = set(scratch)
    known: set[str] = set()
    kept: set[str] = set()
    actions: list[Action] = []
    for record in records:
        known.add(record.id)
        container = by_id.get(record.container) if record.container else None
        is_running = container is not None and container.running
        is_stale = is_running and record.container in stale
        match record.state:
            case State.READY | State.PAUSED if is_stale:
                actions.append(MarkGone(record, "mirror"))
            case State.READY | State.PAUSED | State.WARM if container is not None and is_running and not is_stale:
                kept.add(container.id)
                actions.append(Adopt(record))
            case State.READY | State.PAUSED:
                cause = (container.cause if container else None) or "engine"
                actions.append(MarkGone(record, cause))
            case State.CREATING | State.STARTING if record.generation > 1:
                actions.append(MarkGone(record, "engine"))
            case State.CREATING | State.STARTING | State.WARM | State.DESTROYING | State.REMOVED:
                actions.append(FinishDestroy(record))
            case State.HIBERNATED if record.id in on_disk:
                actions.append(Rest(record))
            case State.HIBERNATED | State.GONE:
                pass
    orphans = [RemoveContainer(container_id) for container_id in by_id if container_id not in kept]
    strays = [RemoveFiles(sandbox_id) for sandbox_id in sorted(on_disk - known)]
    unclaimed = [KeepWorkspace(sandbox_id) for sandbox_id in sorted(set(workspaces) - known)]
    # Containers first, because a directory that a container still writes to cannot be removed.
    return [*orphans, *actions, *strays, *unclaimed]
