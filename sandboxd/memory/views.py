"""Views: which revision of each document each session last saw. In memory and bounded; evicted means not seen.

Pure bookkeeping: it holds revisions and line ranges, never text.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from memo.documents import DocumentKey
from memo.ids import SessionRef

MOST_OF_SESSION = 256
MOST_IN_ALL = 20_000
_MOST_PIECES = 64
"""How many separate ranges of one document are tracked. A further Read with `offset` extends a range."""


@dataclass(frozen=True, slots=True)
class View:
    """A revision of which a session has seen every line. A negative revision is a queued write."""

    revision: int
    sha256: str


@dataclass(slots=True)
class _Pieces:
    """The lines of one revision seen so far: sorted ranges that neither overlap nor touch."""

    view: View
    ranges: list[range] = field(default_factory=list)

    def add(self, lines: range) -> None:
        merged: list[range] = []
        for other in sorted([*self.ranges, lines], key=lambda one: one.start):
            if merged and other.start <= merged[-1].stop:
                merged[-1] = range(merged[-1].start, max(merged[-1].stop, other.stop))
            else:
                merged.append(other)
        self.ranges = merged[:_MOST_PIECES]


@dataclass(slots=True)
class _Seen:
    whole: View | None = None
    pieces: _Pieces | None = None


class Views:
    """Evicts the least recently used entry, per session and in total."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[SessionRef, OrderedDict[DocumentKey, _Seen]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def whole(self, ref: SessionRef, key: DocumentKey) -> View | None:
        """Return the last revision of which the session has seen every line."""
        of_session = self._sessions.get(ref)
        seen = None if of_session is None else of_session.get(key)
        return None if seen is None else seen.whole

    def saw(self, ref: SessionRef, key: DocumentKey, view: View) -> None:
        """Record that the session has seen all of this revision."""
        seen = self._entry(ref, key)
        seen.whole, seen.pieces = view, None

    def saw_lines(self, ref: SessionRef, key: DocumentKey, view: View, lines: range, total: int) -> None:
        """Record that the session has seen these lines, counted from 0, and whether that completes the revision."""
        seen = self._entry(ref, key)
        if seen.pieces is None or seen.pieces.view != view:
            seen.pieces = _Pieces(view)
        if lines:
            seen.pieces.add(lines)
        if not total or seen.pieces.ranges == [range(total)]:
            seen.whole, seen.pieces = view, None

    def forget(self, ref: SessionRef, key: DocumentKey | None = None) -> None:
        """Forget what the session saw: of one document, or of all."""
        of_session = self._sessions.get(ref, OrderedDict())
        if key is None:
            self._sessions.pop(ref, None)
            self._count -= len(of_session)
        elif of_session.pop(key, None) is not None:
            self._count -= 1
            if not of_session:
                del self._sessions[ref]

    def _entry(self, ref: SessionRef, key: DocumentKey) -> _Seen:
        of_session = self._sessions.setdefault(ref, OrderedDict())
        self._sessions.move_to_end(ref)
        seen = of_session.get(key)
        if seen is None:
            seen = of_session[key] = _Seen()
            self._count += 1
            if len(of_session) > MOST_OF_SESSION:
                self.forget(ref, next(iter(of_session)))
            elif self._count > MOST_IN_ALL:
                oldest = next(iter(self._sessions))
                self.forget(oldest, next(iter(self._sessions[oldest])))
        of_session.move_to_end(key)
        return seen
