"""The contract of the ledger: what a store knows of consolidation, for every user, and how a run is settled.

A session is pending from its next message on until a run has settled that revision of it. A session's revision is the
number of messages it ever had. Standing and memory are JSON that only this package understands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from memo.documents import HOST, Author, Document, DocumentKey, Expected
from memo.errors import Unsupported
from memo.ids import SessionId, UserRef
from memo.leases import Lease, LeaseStore

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PendingUser:
    """One line of a scan: a user with sessions that no run has settled."""

    user: UserRef
    changed: int
    last_activity: datetime
    standing: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionRevision:
    session: SessionId
    revision: int
    updated_at: datetime
    is_pending: bool


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """All there is of one user. `lease` is the last one granted, perhaps long over."""

    standing: Json = field(default_factory=dict)
    memory: Json = field(default_factory=dict)
    changed: int = 0
    last_activity: datetime | None = None
    lease: Lease | None = None


@dataclass(frozen=True, slots=True)
class DocumentChange:
    key: DocumentKey
    content: str
    expected: Expected
    author: Author = HOST


@dataclass(frozen=True, slots=True)
class Settlement:
    """What a run commits at once. `settled` names the sessions that are no longer pending at that revision."""

    standing: Json
    memory: Json | None = None
    """None leaves the memory as it is."""
    settled: Mapping[SessionId, int] = field(default_factory=dict)
    document: DocumentChange | None = None


class ConsolidationLedger(LeaseStore, Protocol):
    async def list_pending(self) -> list[PendingUser]:
        """Return every user with a pending session. One query for all; users without one cost nothing."""

    async def list_standings(self, tenant: str | None = None) -> list[tuple[UserRef, Json]]:
        """Return the standing of every user that a run was ever settled for, by tenant and user."""

    async def list_session_revisions(self, user: UserRef) -> list[SessionRevision]:
        """Return all sessions of the user that have messages, the newest change first."""

    async def read_ledger(self, user: UserRef) -> LedgerEntry:
        """Return all that is known of the user; of an unknown one, an empty entry."""

    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        """Commit everything, or raise LeaseLost or RevisionConflict and change nothing. Return the new document.

        A session with messages after the settled revision stays pending.
        """


_METHODS = (
    "acquire_lease",
    "renew_lease",
    "release_lease",
    "list_pending",
    "list_standings",
    "list_session_revisions",
    "read_ledger",
    "settle",
)


def require_ledger(store: Any) -> None:
    """Raise Unsupported, and say why, if the store keeps no ledger."""
    missing = [name for name in _METHODS if not callable(getattr(store, name, None))]
    if missing:
        raise Unsupported(f"cannot consolidate in {type(store).__name__}: it has no {', '.join(missing)}")
