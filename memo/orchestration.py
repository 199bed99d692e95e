"""The contract for orchestration persistence: events, checkpoints, mailboxes and histories of a session's agents.

Recovery is the latest checkpoint plus the events after it. If the checkpoint cannot be read, or names an event that the
log does not have, recovery starts from the first event. With an empty log there is nothing to replay, so the checkpoint
is the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from memo.ids import SessionRef

Event = dict[str, Any]
Snapshot = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A snapshot, and how many events were in the log when it was written."""

    snapshot: Snapshot
    events_before: int


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """Apply `events` in order to `snapshot` (None: to an empty state) to restore the state."""

    snapshot: Snapshot | None
    events: list[Event]
    source: Literal["checkpoint", "no checkpoint", "unknown checkpoint", "corrupt checkpoint"]


class OrchestrationPersistence(Protocol):
    async def append_event(self, event: Mapping[str, Any]) -> None: ...

    async def load_events(self) -> list[Event]:
        """Return every event in the order in which it was appended."""

    async def load_snapshot(self) -> Snapshot | None:
        """Return the latest checkpoint, or None if none was written. Raise Corrupt if it cannot be read."""

    async def write_checkpoint(self, snapshot: Mapping[str, Any]) -> None:
        """Replace the checkpoint. It may name the last event that it includes as `lastEventId`."""

    async def recover_state(self) -> RecoveredState: ...

    async def append_mailbox_event(self, agent_id: str, event: Mapping[str, Any]) -> None: ...

    async def load_mailbox_events(self, agent_id: str) -> list[Event]: ...

    async def load_mailbox_state(self, agent_id: str) -> dict[str, Any]:
        """Return the state, or {} if it was never written."""

    async def write_mailbox_state(self, agent_id: str, state: Mapping[str, Any]) -> None: ...

    async def load_agent_history(self, agent_id: str) -> list[Any]:
        """Return the history, or [] if it was never written."""

    async def write_agent_history(self, agent_id: str, history: Sequence[Any]) -> None: ...


class AgentLister(Protocol):
    """Optional addition to OrchestrationPersistence."""

    async def list_agents(self) -> list[str]:
        """Return the agents that have a mailbox or a history, by id."""


OrchestrationFactory = Callable[[SessionRef], OrchestrationPersistence]
"""Called at most once per session."""


def recover(checkpoint: Checkpoint | Literal["corrupt"] | None, events: list[Event]) -> RecoveredState:
    """Decide which snapshot to start from and which events to replay."""
    if checkpoint is None:
        return RecoveredState(None, events, "no checkpoint")
    if checkpoint == "corrupt":
        return RecoveredState(None, events, "corrupt checkpoint")
    snapshot = checkpoint.snapshot
    if not events:
        return RecoveredState(snapshot, [], "checkpoint")
    last = snapshot.get("lastEventId") or snapshot.get("last_event_id")
    if last is None:
        if checkpoint.events_before > len(events):
            return RecoveredState(None, events, "unknown checkpoint")
        return RecoveredState(snapshot, events[checkpoint.events_before :], "checkpoint")
    for index in range(len(events) - 1, -1, -1):
        if last in (events[index].get("eventId"), events[index].get("event_id"), events[index].get("id")):
            return RecoveredState(snapshot, events[index + 1 :], "checkpoint")
    return RecoveredState(None, events, "unknown checkpoint")
