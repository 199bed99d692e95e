"""Writes of agents: each is compared with what its own session last saw, never with what a mirror shows by now.

The rule. A session has seen a revision once it was shown every line of it: by Read (in one piece, or in several of
the same revision; a line that was cut does not count), by the API, by a refusal that returned the newer text whole,
by a merge that showed all of what others changed, or because the session wrote the text itself. A whole text is then
written as follows.

- The store is still at the revision seen: commit, by compare-and-swap.
- It has moved on: three-way merge with the revision seen as the base; a collision changes nothing.
- Nothing was seen (never read, forgotten, read with a shell): commit only if no line of the current text is lost.

So a line can only disappear by a write of a session that has seen it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from anyio import to_thread

from memo.documents import ABSENT, ANY, HOST, Author, Document, DocumentKey, Expected, sha256_of
from memo.errors import RevisionConflict
from memo.ids import SessionRef
from sandboxd.errors import StoreUnavailable
from sandboxd.mirror.answers import Queued, Written
from sandboxd.mirror.merge import MergedText, contains, merge
from sandboxd.mirror.views import View, Views

_MOST_TRIES = 10


class DocumentWriter(Protocol):
    """The one writer, as far as agents need it. `mirror.Memory` is one."""

    async def newest(self, key: DocumentKey) -> Document | None:
        """Return the document with every write that waits for the store; None if it was never written."""

    async def text_at(self, key: DocumentKey, revision: Expected) -> str | None:
        """Return what the document was at a revision, or None if that can no longer be told."""

    async def mirrored(self, ref: SessionRef, key: DocumentKey) -> Document | None:
        """Return what the session's mirror shows; None if it shows nothing, or if that cannot be told."""

    async def write(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Written | Queued:
        """Commit if the document is still `expected`, else raise RevisionConflict with what it is."""

    async def append(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Written | Queued: ...


@dataclass(frozen=True, slots=True)
class AgentWrite:
    """What a write became. After a merge, `theirs` shows what others had changed; None if that cannot be shown."""

    outcome: Written | Queued
    theirs: str | None = ""

    @property
    def is_merged(self) -> bool:
        return self.theirs != ""


class AgentMemory:
    """Documents as the agents of sessions read and write them. Owns the memory of what each of them saw."""

    def __init__(self, writer: DocumentWriter) -> None:
        self._writer = writer
        self._views = Views()

    async def read(self, ref: SessionRef, key: DocumentKey) -> Document | None:
        """Return what the session's mirror shows. The caller notes what of it the agent sees, with `saw_lines`."""
        return await self._writer.mirrored(ref, key)

    async def newest(self, key: DocumentKey) -> Document | None:
        return await self._writer.newest(key)

    async def seen_text(self, ref: SessionRef, key: DocumentKey) -> str | None:
        """Return the text that the session has seen; None if it has not, or if that can no longer be told."""
        view = self._views.whole(ref, key)
        return None if view is None else await self._text_at(key, view)

    def saw(self, ref: SessionRef, key: DocumentKey, document: Document) -> None:
        """Note that the agent was shown all of this text."""
        self._views.saw(ref, key, View(document.revision, document.sha256))

    def saw_lines(self, ref: SessionRef, key: DocumentKey, document: Document, lines: range, total: int) -> None:
        """Note that the agent was shown these lines of a text, counted from 0, uncut."""
        self._views.saw_lines(ref, key, View(document.revision, document.sha256), lines, total)

    def saw_outcome(self, ref: SessionRef, key: DocumentKey, outcome: Written | Queued) -> None:
        """Note that the agent knows all of the text that a write left behind."""
        revision = -outcome.number if isinstance(outcome, Queued) else outcome.revision
        self._views.saw(ref, key, View(revision, outcome.sha256))

    def forget(self, ref: SessionRef, key: DocumentKey | None = None) -> None:
        self._views.forget(ref, key)

    async def write(self, ref: SessionRef, key: DocumentKey, content: str, author: Author) -> AgentWrite:
        """Replace the whole text by the rule above, or raise RevisionConflict with the newer text."""
        view = self._views.whole(ref, key)
        try:
            outcome = await self._writer.write(
                key, content, expected=ABSENT if view is None else view.revision, author=author
            )
        except RevisionConflict as conflict:
            return await self._reconcile(ref, key, content, author, view, conflict)
        return self._wrote(ref, key, content, outcome)

    async def replace(
        self, ref: SessionRef, key: DocumentKey, document: Document | None, content: str, author: Author
    ) -> AgentWrite:
        """Commit a change of some lines that was made to this very text, or raise RevisionConflict.

        The caller vouches that the agent knows the lines it changed. The others remain unseen if they were.
        """
        view = self._views.whole(ref, key)
        expected = ABSENT if document is None else document.revision
        outcome = await self._writer.write(key, content, expected=expected, author=author)
        if document is None or (view is not None and view.sha256 == document.sha256):
            return self._wrote(ref, key, content, outcome)
        return AgentWrite(outcome)

    async def append(self, ref: SessionRef, key: DocumentKey, content: str, author: Author) -> Written | Queued:
        view = self._views.whole(ref, key)
        outcome = await self._writer.append(key, content, author=author)
        if isinstance(outcome, Written) and await self._knows_all(key, view, content, outcome):
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
                return self._wrote(ref, key, content, outcome)
            self._views.forget(ref, key)  # until the agent is shown what else is in there now
            return AgentWrite(outcome, merged.theirs)
        raise conflict

    async def _commit(self, key: DocumentKey, text: str, current: Document, author: Author) -> Written | Queued:
        if text == current.content:  # the others have made the same change
            return Written(key, current.revision, current.sha256, len(text.encode()))
        return await self._writer.write(key, text, expected=current.revision, author=author)

    async def _knows_all(self, key: DocumentKey, view: View | None, added: str, outcome: Written) -> bool:
        """Say whether a text is all that a session had seen of it, and what the session added."""
        if view is None:
            return outcome.sha256 == sha256_of(added.encode())
        if outcome.revision == view.revision + 1:  # nothing can be in between
            return True
        text = await self._text_at(key, view)
        return text is not None and outcome.sha256 == sha256_of(f"{text}{added}".encode())

    def _wrote(self, ref: SessionRef, key: DocumentKey, content: str, outcome: Written | Queued) -> AgentWrite:
        """Note what the session knows of a text that it wrote all by itself."""
        if outcome.sha256 == sha256_of(content.encode()):
            self.saw_outcome(ref, key, outcome)
            return AgentWrite(outcome)
        # A retry of a write that was merged, or a provider that keeps texts in another form.
        self._views.forget(ref, key)
        return AgentWrite(outcome, None)

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
