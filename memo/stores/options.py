"""StoreOptions: the constructor options of every store; and the errors that all stores share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from memo.errors import Absent, SessionTaken
from memo.ids import SessionRef
from memo.limits import StoreLimits
from memo.tokens import TokenCounter

_log = logging.getLogger("memo.stores")


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class StoreOptions:
    limits: StoreLimits = field(default_factory=StoreLimits)
    counter: TokenCounter = field(default_factory=TokenCounter)
    clock: Callable[[], datetime] = utc_now
    feed_check_s: float = 5.0
    """How often a feed polls, in case a writer in another process died between commit and notification."""


def session_taken(ref: SessionRef) -> SessionTaken:
    return SessionTaken(f"cannot use session {ref}: it belongs to another user")


def unknown_session(ref: SessionRef) -> Absent:
    return Absent(f"cannot find session {ref}: it does not exist")


def notes_do_not_fit(ref: SessionRef) -> None:
    """Warn that a compaction left the notes unchanged: a full NOTES.md must not prevent compaction."""
    _log.warning("cannot add the summary of session %s to its notes: they have reached their size limit", ref)
