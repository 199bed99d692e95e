# Generated from sandboxd/client/_async/traces.py by scripts/unasync.py; change that file and run `make client`.
"""Trace and orchestration calls: what agents record about their work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from memo.ids import AgentId
from sandboxd.client._sync.calls import Calls
from sandboxd.client.request import STORE_S, json_request, with_query
from sandboxd.models.inspector import SessionDetails
from sandboxd.models.trace import (
    AgentHistory,
    AgentList,
    AppendedEntries,
    EnvelopeList,
    MailboxState,
    OrchestrationState,
    StoredCheckpoint,
    StoredEventList,
)

JsonObjects = Sequence[Mapping[str, Any]]


class TraceCalls(Calls):
    def append_trace(
        self,
        session: str,
        envelopes: JsonObjects,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Append envelopes to the session's trace, in this order; return how many."""
        content = {"envelopes": [dict(envelope) for envelope in envelopes]}
        target = f"{self._session_path(session, tenant)}/trace"
        request = json_request("POST", target, content, key=idempotency_key, timeout_s=STORE_S)
        return (self._ask(AppendedEntries, request)).appended

    def load_trace(
        self, session: str, *, after: int = 0, limit: int | None = None, tenant: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the envelopes of the session's trace, oldest first, without the first `after`."""
        target = with_query(f"{self._session_path(session, tenant)}/trace", after=after or None, limit=limit)
        return (self._ask(EnvelopeList, json_request("GET", target, timeout_s=STORE_S))).items

    def inspect_session(self, session: str, *, tenant: str | None = None) -> SessionDetails:
        """Return the session, whether the store has it or a sandbox, with its sandbox and its forks."""
        path = self._session_path(session, tenant).removeprefix("/v1")
        return self._ask(SessionDetails, json_request("GET", f"/__inspector/api{path}", timeout_s=STORE_S))


class OrchestrationCalls(Calls):
    """The orchestration of a session's agents: events, a checkpoint, mailboxes and histories."""

    def _path(self, session: str, tenant: str | None, agent: str | None = None) -> str:
        path = f"{self._session_path(session, tenant)}/orchestration"
        return path if agent is None else f"{path}/agents/{quote(AgentId(agent), safe='')}"

    def append_events(
        self, session: str, events: JsonObjects, *, tenant: str | None = None, idempotency_key: str | None = None
    ) -> int:
        """Append events, in this order; return how many."""
        return self._append(f"{self._path(session, tenant)}/events", events, idempotency_key)

    def load_events(
        self, session: str, *, after: int = 0, limit: int | None = None, tenant: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the events, oldest first, without the first `after`."""
        return self._load(f"{self._path(session, tenant)}/events", after, limit)

    def write_checkpoint(self, session: str, snapshot: Mapping[str, Any], *, tenant: str | None = None) -> None:
        """Replace the checkpoint. It may name the last event that it includes as `lastEventId`."""
        self._put(f"{self._path(session, tenant)}/checkpoint", {"snapshot": dict(snapshot)})

    def load_snapshot(self, session: str, *, tenant: str | None = None) -> dict[str, Any] | None:
        """Return the latest checkpoint, or None if none was written."""
        target = f"{self._path(session, tenant)}/checkpoint"
        return (self._ask(StoredCheckpoint, json_request("GET", target, timeout_s=STORE_S))).snapshot

    def recover_state(self, session: str, *, tenant: str | None = None) -> OrchestrationState:
        """Return the latest checkpoint and the events after it."""
        target = f"{self._path(session, tenant)}/state"
        return self._ask(OrchestrationState, json_request("GET", target, timeout_s=STORE_S))

    def list_agents(self, session: str, *, tenant: str | None = None) -> list[str]:
        """Return the agents that have a mailbox or a history; raise `Unsupported` if the store cannot list them."""
        target = f"{self._path(session, tenant)}/agents"
        return (self._ask(AgentList, json_request("GET", target, timeout_s=STORE_S))).items

    def append_mailbox_events(
        self,
        session: str,
        agent: str,
        events: JsonObjects,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Append events to the agent's mailbox, in this order; return how many."""
        return self._append(f"{self._path(session, tenant, agent)}/mailbox", events, idempotency_key)

    def load_mailbox_events(
        self, session: str, agent: str, *, after: int = 0, limit: int | None = None, tenant: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the events of the agent's mailbox, oldest first, without the first `after`."""
        return self._load(f"{self._path(session, tenant, agent)}/mailbox", after, limit)

    def write_mailbox_state(
        self, session: str, agent: str, state: Mapping[str, Any], *, tenant: str | None = None
    ) -> None:
        self._put(f"{self._path(session, tenant, agent)}/mailbox-state", {"state": dict(state)})

    def load_mailbox_state(self, session: str, agent: str, *, tenant: str | None = None) -> dict[str, Any]:
        """Return the state of the agent's mailbox, or {} if it was never written."""
        target = f"{self._path(session, tenant, agent)}/mailbox-state"
        return (self._ask(MailboxState, json_request("GET", target, timeout_s=STORE_S))).state

    def write_agent_history(
        self, session: str, agent: str, history: Sequence[Any], *, tenant: str | None = None
    ) -> None:
        self._put(f"{self._path(session, tenant, agent)}/history", {"history": list(history)})

    def load_agent_history(self, session: str, agent: str, *, tenant: str | None = None) -> list[Any]:
        """Return the agent's history, or [] if it was never written."""
        target = f"{self._path(session, tenant, agent)}/history"
        return (self._ask(AgentHistory, json_request("GET", target, timeout_s=STORE_S))).history

    def _append(self, target: str, events: JsonObjects, key: str | None) -> int:
        content = {"events": [dict(event) for event in events]}
        request = json_request("POST", target, content, key=key, timeout_s=STORE_S)
        return (self._ask(AppendedEntries, request)).appended

    def _load(self, target: str, after: int, limit: int | None) -> list[dict[str, Any]]:
        request = json_request("GET", with_query(target, after=after or None, limit=limit), timeout_s=STORE_S)
        return (self._ask(StoredEventList, request)).items

    def _put(self, target: str, content: Mapping[str, Any]) -> None:
        self._send(json_request("PUT", target, content, timeout_s=STORE_S, is_idempotent=True))
