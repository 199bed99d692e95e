"""The ledger: a store's record of consolidation for each user, and how a run is committed.

A session is pending from its first new message until a run settles that revision of it. A session's revision is the
number of messages it has ever had. Standing and memory are JSON that only `memo.consolidation` understands.
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
    """A user with pending sessions, as one row of a scan."""

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
    """Everything the ledger holds about one user. `lease` is the last one granted and may have expired."""

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
    """What a run commits in one transaction. `settled` maps each session that the run covered to its revision."""

    standing: Json
    memory: Json | None = None
    """None leaves the stored memory unchanged."""
    settled: Mapping[SessionId, int] = field(default_factory=dict)
    document: DocumentChange | None = None


class SettlementWriter(Protocol):
    """Commits consolidation runs. A store is one; a daemon can put its own document writer in front of it."""

    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        """Commit everything and return the new document, or raise LeaseLost or RevisionConflict and change nothing.

        A session with messages after the settled revision stays pending.
        """


class ConsolidationLedger(LeaseStore, SettlementWriter, Protocol):
    async def list_pending(self) -> list[PendingUser]:
        """Return every user with a pending session, in one query that does not touch other users."""

    async def list_standings(self, tenant: str | None = None) -> list[tuple[UserRef, Json]]:
        """Return the standing of every user with at least one settled run, sorted by tenant and user."""

    async def list_session_revisions(self, user: UserRef) -> list[SessionRevision]:
        """Return the user's sessions that have messages, most recently changed first."""

    async def read_ledger(self, user: UserRef) -> LedgerEntry:
        """Return the user's entry; an unknown user has an empty one."""


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


def has_ledger(store: object) -> bool:
    return not _missing(store)


def _missing(store: object) -> list[str]:
    return [name for name in _METHODS if not callable(getattr(store, name, None))]


def require_ledger(store: Any) -> None:
    """Raise Unsupported if the store has no ledger."""
    if missing := _missing(store):
        raise Unsupported(f"cannot consolidate in {type(store).__name__}: it does not implement {', '.join(missing)}")
