"""The contract of an inspector data source: everything about sessions, read-only.

The server that exposes it is responsible for access control; nothing here writes.
"""

from __future__ import annotations

from typing import Protocol

from memo.messages import Message
from memo.orchestration import Event, RecoveredState
from memo.sessions import Session
from memo.traces import Envelope


class InspectorDataSource(Protocol):
    async def list_sessions(self, tenant: str | None = None) -> list[Session]:
        """Return every session of one tenant or of all, most recently changed first."""

    async def load_messages(self, tenant: str, session: str) -> list[Message]: ...

    async def load_trace_envelopes(self, tenant: str, session: str) -> list[Envelope]: ...

    async def load_orchestration_state(self, tenant: str, session: str) -> RecoveredState | None:
        """Return the recovered state, or None if the session has no orchestration data."""

    async def load_orchestration_events(self, tenant: str, session: str) -> list[Event]: ...
