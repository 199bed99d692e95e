"""AgentMemory: compares an agent's write with what its session last saw, not with what the mirror shows now.

A session has seen a revision once it was shown every line of it: by Read (in one piece, or in several of the same
revision; a truncated line does not count), by the API, by a refusal that returned the newer text in full, by a merge
that showed all of the other side's changes, or because the session wrote the text itself. A whole text is then written
by this rule:

- The store is still at the revision seen: commit by compare-and-swap.
- The store has a newer revision: three-way merge with the revision seen as the base; a collision changes nothing.
- Nothing was seen (never read, forgotten, or read in a shell): commit only if no line of the current text is lost.

So only a session that has seen a line can remove it (I13).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anyio import to_thread

from memo.documents import ABSENT, ANY, HOST, Author, Document, DocumentKey, Expected, sha256_of
from memo.errors import RevisionConflict
from memo.ids import SessionRef
from sandboxd.errors import StoreUnavailable
from sandboxd.memory.merge import MergedText, contains, merge
from sandboxd.memory.outcomes import Committed, Queued
from sandboxd.memory.views import View, Views

_MOST_TRIES = 10


class DocumentWriter(Protocol):
    """What agents need from the one writer. `Memory` implements it."""

    async def newest(self, key: DocumentKey) -> Document | None:
        """Return the document including its queued writes; None if it was never written."""

    async def text_at(self, key: DocumentKey, revision: Expected) -> str | None:
        """Return the document's text at a revision, or None if it is no longer known."""

    async def mirrored(self, ref: SessionRef, key: DocumentKey) -> Document | None:
        """Return what the session's mirror shows; None if it shows nothing or is not known."""

    async def write(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Committed | Queued:
        """Commit if the document is still at `expected`, else raise RevisionConflict with the current one."""

    async def append(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Committed | Queued: ...


@dataclass(frozen=True, slots=True)
class AgentWrite:
    """The outcome of a write. After a merge, `theirs` shows the other side's changes; None if they are not known."""

    outcome: Committed | Queued
    theirs: str | None = ""

    @property
    def is_merged(self) -> bool:
        return self.theirs != ""


class AgentMemory:
    """Documents as agents read and write them. Owns the record of what each session saw."""

    def __init__(self, writer: DocumentWriter) -> None:
        self._writer = writer
        self._views = Views()

    async def read(self, ref: SessionRef, key: DocumentKey) -> Document | None:
        """Return what the session's mirror shows. The caller records the lines it passes on with `saw_lines`."""
        return await self._writer.mirrored(ref, key)

    async def newest(self, key: DocumentKey) -> Document | None:
        return await self._writer.newest(key)

    async def seen_text(self, ref: SessionRef, key: DocumentKey) -> str | None:
        """Return the text that the session last saw; None if it saw none or the text is no longer known."""
        view = self._views.whole(ref, key)
        return None if view is None else await self._text_at(key, view)

    def saw(self, ref: SessionRef, key: DocumentKey, document: Document) -> None:
        """Record that the agent was shown all of this text."""
        self._views.saw(ref, key, View(document.revision, document.sha256))

    def saw_lines(self, ref: SessionRef, key: DocumentKey, document: Document, lines: range, total: int) -> None:
        """Record that the agent was shown these lines of a text, counted from 0, in full."""
        self._views.saw_lines(ref, key, View(document.revision, document.sha256), lines, total)

    def saw_outcome(self, ref: SessionRef, key: DocumentKey, outcome: Committed | Queued) -> None:
        """Record that the agent has seen all of the text that a write produced."""
        revision = -outcome.number if isinstance(outcome, Queued) else outcome.revision
        self._views.saw(ref, key, View(revision, outcome.sha256))

    def forget(self, ref: SessionRef, key: DocumentKey | None = None) -> None:
        self._views.forget(ref, key)

    async def write(self, ref: SessionRef, key: DocumentKey, content: str, author: Author) -> AgentWrite:
        """Replace the whole text according to the rule above, or raise RevisionConflict with the newer text."""
        view = self._views.whole(ref, key)
        try:
            outcome = await self._writer.write(
                key, content, expected=ABSENT if view is None else view.revision, author=author
            )
        except RevisionConflict as conflict:
            return await self._reconcile(ref, key, content, author, view, conflict)
        return self._wrote(ref, key, outcome)

    async def replace(
        self, ref: SessionRef, key: DocumentKey, document: Document | None, content: str, author: Author
    ) -> AgentWrite:
        """Commit an edit of some lines of exactly this text, or raise RevisionConflict.

        The caller guarantees that the agent has seen the lines it changed. Other unseen lines stay unseen.
        """
        view = self._views.whole(ref, key)
        expected = ABSENT if document is None else document.revision
        outcome = await self._writer.write(key, content, expected=expected, author=author)
        if document is None or (view is not None and view.sha256 == document.sha256):
            return self._wrote(ref, key, outcome)
        return AgentWrite(outcome)

    async def append(self, ref: SessionRef, key: DocumentKey, content: str, author: Author) -> Committed | Queued:
        view = self._views.whole(ref, key)
        outcome = await self._writer.append(key, content, author=author)
        if isinstance(outcome, Committed) and await self._knows_all(key, view, content, outcome):
            self.saw_outcome(ref, key, outcome)
        return outcome

    async def _reconcile(
        self,
        ref: SessionRef,
        key: DocumentKey,
        content: str,
        author: Author,
        view: View | None,
        conflict: RevisionConflict,
    ) -> AgentWrite:
        base = None if view is None else await self._text_at(key, view)
        for _ in range(_MOST_TRIES):
            current = conflict.current
            if current is None:
                break
            merged = await to_thread.run_sync(_combine, base, content, current.content)
            if merged is None:
                break
            try:
                outcome = await self._commit(key, merged.text, current, author)
            except RevisionConflict as newer:
                conflict = newer
                continue
            if merged.text == content:
                return self._wrote(ref, key, outcome)
            self._views.forget(ref, key)  # until the agent is shown the other side's changes
            return AgentWrite(outcome, merged.theirs)
        raise conflict

    async def _commit(self, key: DocumentKey, text: str, current: Document, author: Author) -> Committed | Queued:
        if text == current.content:  # the other side made the same change
            return Committed(key, current.revision, current.sha256, len(text.encode()))
        return await self._writer.write(key, text, expected=current.revision, author=author)

    async def _knows_all(self, key: DocumentKey, view: View | None, added: str, outcome: Committed) -> bool:
        """Return whether a text is exactly what the session had seen plus what it appended."""
        if view is None:
            return outcome.sha256 == sha256_of(added.encode())
        if outcome.revision == view.revision + 1:  # no other revision can be in between
            return True
        text = await self._text_at(key, view)
        return text is not None and outcome.sha256 == sha256_of(f"{text}{added}".encode())

    def _wrote(self, ref: SessionRef, key: DocumentKey, outcome: Committed | Queued) -> AgentWrite:
        """Record which lines the session has seen of a text that it wrote."""
        if isinstance(outcome, Committed) and outcome.is_altered:
            self._views.forget(ref, key)
            return AgentWrite(outcome, None)
        self.saw_outcome(ref, key, outcome)
        return AgentWrite(outcome)

    async def _text_at(self, key: DocumentKey, view: View) -> str | None:
        try:
            text = await self._writer.text_at(key, view.revision)
        except StoreUnavailable:
            return None
        return text if text is not None and sha256_of(text.encode()) == view.sha256 else None


def _combine(base: str | None, content: str, current: str) -> MergedText | None:
    if base is not None:
        return merge(base, content, current)
    return MergedText(content, "") if contains(content, current) else None
