"""Journal: the append-only logs and replaceable slots of one session, used for traces and orchestration.

A store implements `Journal`; the two contracts on top are the same for every store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import anyio.to_thread

from memo.errors import Corrupt, InvalidContent
from memo.ids import AgentId, are_legal
from memo.messages import decode_json, decode_object, encode_json, encode_object
from memo.orchestration import Checkpoint, Event, RecoveredState, Snapshot, recover
from memo.stores.prepared_text import SHORT_CHARS
from memo.traces import Envelope

LogName = Literal["trace", "event", "mailbox"]
SlotName = Literal["checkpoint", "mailbox", "history"]


@dataclass(frozen=True, slots=True)
class Slot:
    """The content of a slot, and the number of events in the session's log when it was written."""

    body: str
    events_before: int


class Journal(Protocol):
    """The logs and slots of one session. `agent` is "" for those of the session itself."""

    async def append(self, log: LogName, agent: str, body: str) -> None: ...

    async def append_all(self, log: LogName, agent: str, bodies: Sequence[str]) -> None:
        """Append several at once. After a crash, a first part of them may be there."""

    async def load(self, log: LogName, agent: str) -> list[str]:
        """Return every body in the order in which it was appended."""

    async def put(self, slot: SlotName, agent: str, body: str) -> None: ...

    async def get(self, slot: SlotName, agent: str) -> Slot | None: ...

    async def agents(self) -> list[str]:
        """Return every agent that has a log or a slot, in any order."""

    def place(self, log: LogName, agent: str, number: int) -> str:
        """Return where a body of a log is kept, for an error: a file and its line, or a row."""


class JournaledTraces:
    def __init__(self, journal: Journal, limit_bytes: int) -> None:
        self._journal = journal
        self._limit_bytes = limit_bytes

    async def append_envelope(self, envelope: Mapping[str, Any]) -> None:
        await self._journal.append("trace", "", encode_object("trace envelope", envelope, self._limit_bytes))

    async def append_envelopes(self, envelopes: Sequence[Mapping[str, Any]]) -> None:
        bodies = [encode_object("trace envelope", envelope, self._limit_bytes) for envelope in envelopes]
        await self._journal.append_all("trace", "", bodies)

    async def load_envelopes(self) -> list[Envelope]:
        return await _load_log(self._journal, "trace envelope", "trace")


class JournaledOrchestration:
    def __init__(self, journal: Journal, limit_bytes: int) -> None:
        self._journal = journal
        self._limit_bytes = limit_bytes

    async def append_event(self, event: Mapping[str, Any]) -> None:
        await self._journal.append("event", "", encode_object("event", event, self._limit_bytes))

    async def load_events(self) -> list[Event]:
        return await _load_log(self._journal, "event", "event")

    async def load_snapshot(self) -> Snapshot | None:
        checkpoint = await self._load_checkpoint()
        return None if checkpoint is None else checkpoint.snapshot

    async def write_checkpoint(self, snapshot: Mapping[str, Any]) -> None:
        await self._journal.put("checkpoint", "", encode_object("checkpoint", snapshot, self._limit_bytes))

    async def recover_state(self) -> RecoveredState:
        checkpoint: Checkpoint | Literal["corrupt"] | None
        try:
            checkpoint = await self._load_checkpoint()
        except Corrupt:
            checkpoint = "corrupt"
        return recover(checkpoint, await self.load_events())

    async def append_mailbox_event(self, agent_id: str, event: Mapping[str, Any]) -> None:
        body = encode_object("mailbox event", event, self._limit_bytes)
        await self._journal.append("mailbox", AgentId(agent_id), body)

    async def load_mailbox_events(self, agent_id: str) -> list[Event]:
        return await _load_log(self._journal, "mailbox event", "mailbox", AgentId(agent_id))

    async def load_mailbox_state(self, agent_id: str) -> dict[str, Any]:
        slot = await self._journal.get("mailbox", AgentId(agent_id))
        return {} if slot is None else decode_object(slot.body, f"the mailbox state of agent {agent_id}")

    async def write_mailbox_state(self, agent_id: str, state: Mapping[str, Any]) -> None:
        await self._journal.put("mailbox", AgentId(agent_id), encode_object("mailbox state", state, self._limit_bytes))

    async def load_agent_history(self, agent_id: str) -> list[Any]:
        slot = await self._journal.get("history", AgentId(agent_id))
        history = [] if slot is None else decode_json(slot.body, f"the history of agent {agent_id}")
        if not isinstance(history, list):
            raise Corrupt(f"cannot read the history of agent {agent_id}: the stored data is not a list")
        return history

    async def write_agent_history(self, agent_id: str, history: Sequence[Any]) -> None:
        if isinstance(history, str | bytes | Mapping) or not isinstance(history, Sequence):
            raise InvalidContent("cannot store this agent history: it is not a list")
        await self._journal.put(
            "history", AgentId(agent_id), encode_json("agent history", list(history), self._limit_bytes)
        )

    async def list_agents(self) -> list[str]:
        return sorted(agent for agent in await self._journal.agents() if are_legal([agent]))

    async def _load_checkpoint(self) -> Checkpoint | None:
        slot = await self._journal.get("checkpoint", "")
        return None if slot is None else Checkpoint(decode_object(slot.body, "the checkpoint"), slot.events_before)


async def _load_log(journal: Journal, noun: str, log: LogName, agent: str = "") -> list[dict[str, Any]]:
    bodies = await journal.load(log, agent)

    def decode() -> list[dict[str, Any]]:
        return [
            decode_object(body, f"{noun} {number} ({journal.place(log, agent, number)})")
            for number, body in enumerate(bodies, start=1)
        ]

    return decode() if sum(map(len, bodies)) <= SHORT_CHARS else await anyio.to_thread.run_sync(decode)
