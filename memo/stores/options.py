"""What every store is told at its making, and the errors that every store words the same.

Knows no store.
"""

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
    """How often a feed looks for itself, in case a writer in another process died between commit and ring."""


def session_taken(ref: SessionRef) -> SessionTaken:
    return SessionTaken(f"cannot use session {ref}: it belongs to another user")


def unknown_session(ref: SessionRef) -> Absent:
    return Absent(f"cannot find session {ref}")


def notes_do_not_fit(ref: SessionRef) -> None:
    """Say that a compaction left the notes alone: a full NOTES.md must not stop the log from being compacted."""
    _log.warning("cannot add the summary of session %s to its notes: they are at their size limit", ref)
