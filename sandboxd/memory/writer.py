"""The one writer: store first, then mirrors, then the answer. Agent tools, routes and host jobs all write through it.

A stale write changes nothing and is answered with the newer text; with `merge`, both changes are kept, in one text or
in two documents. While the store is down a write fails clearly, or is queued in the outbox and the answer says so.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial

import anyio
from anyio import to_thread

from memo.compaction import CompactionOptions
from memo.document_names import DocumentName, name_taken
from memo.documents import (
    ABSENT,
    ANY,
    NOTES,
    ArtifactKey,
    Author,
    Document,
    DocumentKey,
    Expected,
    MovedDocument,
    Revision,
)
from memo.errors import RevisionConflict, Unavailable
from memo.ids import SessionRef
from memo.keyed_lock import KeyedLock
from memo.leases import Lease
from memo.ledger import Settlement
from memo.limits import encode_text
from memo.sessions import Summarize
from sandboxd import failpoints
from sandboxd.errors import SandboxdError, StoreCorrupt, StoreUnavailable
from sandboxd.memory.announcer import Announcer, fields_of
from sandboxd.memory.blob_warmer import BlobWarmer
from sandboxd.memory.key_locks import KeyLocks
from sandboxd.memory.manifest_writer import ManifestWriter
from sandboxd.memory.merge import copy_key
from sandboxd.memory.merge import merge as merge_texts
from sandboxd.memory.mirror import Mirrors, clashing
from sandboxd.memory.mirror_reader import MirrorReader
from sandboxd.memory.outbox import Base, Kind, Outbox
from sandboxd.memory.outcomes import Committed, Key, Queued, WriteConflict, WriteOutcomeUnknown
from sandboxd.memory.refresher import Refresher
from sandboxd.memory.store_client import StoreClient
from sandboxd.memory.text import Content, Text, relative_of

_MOST_MERGES = 10


class Writer:
    def __init__(
        self,
        store: StoreClient,
        mirrors: Mirrors,
        reader: MirrorReader,
        locks: KeyLocks,
        refresher: Refresher,
        manifests: ManifestWriter,
        announcer: Announcer,
        warmer: BlobWarmer,
        outbox: Outbox | None,
        *,
        queues: bool,
    ) -> None:
        """`queues` says whether new writes may be queued; an outbox without it only delivers what it holds."""
        self._store = store
        self._mirrors = mirrors
        self._reader = reader
        self._locks = locks
        self._refresher = refresher
        self._manifests = manifests
        self._announcer = announcer
        self._warmer = warmer
        self._outbox = outbox
        self._queues = queues
        self._artifact_locks = KeyedLock[ArtifactKey]()

    async def write(
        self, key: DocumentKey, content: str, expected: Expected, author: Author, *, merge: bool
    ) -> Committed | Queued:
        self._store.check_writable(key)
        given = Content.of(content, encode_text("document", content, self._store.limits.document_bytes))
        author = self._with_request(author)
        expected = self._reader.delivered(expected)
        if not self._store.capabilities.revisions:
            self._check_name(key)

        async def commit() -> tuple[Text, bool]:
            return await self._commit(key, given, expected, author, merge=merge)

        queue = partial(self._queue, key, "write", given, expected, author)
        outcome = await self._store_or_queue(key, author, commit, queue)
        if isinstance(outcome, Committed) and outcome.sha256 != given.sha256:
            return replace(outcome, is_altered=True)
        return outcome

    async def append(self, key: DocumentKey, content: str, author: Author) -> Committed | Queued:
        self._store.check_writable(key, appends=True)
        given = Content.of(content, encode_text("document", content, self._store.limits.document_bytes))
        author = self._with_request(author)
        if not self._store.capabilities.revisions:
            self._check_name(key)

        async def commit() -> tuple[Text, bool]:
            return await self._store.append(key, given, author), False

        return await self._store_or_queue(key, author, commit, partial(self._queue, key, "append", given, ANY, author))

    async def write_artifact(
        self, key: ArtifactKey, content: str, author: Author, *, based_on: str | None = None
    ) -> Committed | Queued:
        self._store.check_writable(key)
        given = Content.of(content, encode_text("artifact", content, self._store.limits.artifact_bytes))
        author = self._with_request(author)

        async def commit() -> tuple[Text, bool]:
            async with self._artifact_locks.hold(key):
                return await self._store.write_artifact(key, given, based_on), False

        return await self._store_or_queue(
            key, author, commit, partial(self._queue, key, "artifact", given, ANY, author, based_on)
        )

    async def compact(
        self, ref: SessionRef, summarize: Summarize, options: CompactionOptions, summariser_s: float = 0
    ) -> bool:
        """Compact the session's log in the store, which also appends to NOTES.md, and show the new notes.

        `summariser_s` is the time that the summariser may take in addition to the store's.
        """
        notes = DocumentKey.of_session(ref, NOTES)
        async with self._under_way(notes):
            compacted = await self._store.compact(ref, summarize, options, summariser_s)
            if compacted:
                try:
                    await self._refresher.refresh(notes)
                    await self._manifests.flush(self._mirrors.showing(notes))
                except (OSError, SandboxdError):  # committed anyway: the mirrors follow
                    self._refresher.hint_soon(notes)
        return bool(compacted)

    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        """Commit a consolidation run, then show its document. Never queued: a run that failed is repeated later.

        Raise only memo's errors, which the run handles.
        """
        change = settlement.document
        if change is None:
            return await self._store.settle(lease, settlement)
        key = change.key
        async with self._under_way(key), self._plain_lock(key):
            if self._outbox is not None and self._outbox.pending(key) is not None:
                raise Unavailable(f"cannot write {key.name}: an earlier write of it is queued for the store; try again")
            document = await self._store.settle(lease, settlement)
            if document is not None:
                text = Text(document.content.encode(), document.sha256, document.revision)
                await self._finish(key, text, change.author)
        return document

    async def restore(self, key: DocumentKey, revision: int, author: Author) -> Committed:
        async with self._under_way(key):
            return await self._finish(key, await self._store.restore(key, revision, author), author)

    async def delete(self, key: DocumentKey, expected: Expected, author: Author) -> Revision:
        """Delete a document in the store, then in the mirrors. Never queued: it fails while the store is down."""
        self._store.check_removable(key, "delete")
        async with self._under_way(key):
            self._check_none_queued("delete", key)
            try:
                deletion = await self._store.delete(key, expected, author)
            except RevisionConflict as error:
                raise self._stale(key, error) from error
            self._announcer.deleted(key, deletion.revision, author)
            await self._follow(key)
        return deletion

    async def move(self, key: DocumentKey, to: DocumentName, expected: Expected, author: Author) -> MovedDocument:
        """Rename a document in the store, then in the mirrors. Never queued: it fails while the store is down."""
        self._store.check_removable(key, "move")
        target = replace(key, name=to)
        async with self._under_way(key), self._under_way(target):
            self._check_none_queued("move", key, target)
            try:
                moved = await self._store.move(key, to, expected, author)
            except RevisionConflict as error:
                raise self._stale(key, error) from error
            self._announcer.deleted(key, moved.deletion.revision, author, to)
            self._announcer.moved(target, moved.document.revision, author, key.name)
            # The new name first, so that the text is always shown; unless the old one lies in its way.
            is_in_the_way = to.startswith(f"{key.name}/") or key.name.startswith(f"{to}/")
            await self._follow(*((key, target) if is_in_the_way else (target, key)))
        return moved

    async def _follow(self, *keys: DocumentKey) -> None:
        """Make the mirrors show what the store has now. If that fails they follow later, and the answer stays."""
        for key in keys:
            try:
                await failpoints.reach("writeback.committed")
                await self._refresher.refresh(key)
                await failpoints.reach("writeback.mirrored")
                await self._manifests.flush(self._mirrors.showing(key))
            except (OSError, SandboxdError):
                self._refresher.hint_soon(key)

    def _check_none_queued(self, verb: str, *keys: DocumentKey) -> None:
        for key in keys:
            if self._outbox is not None and self._outbox.pending(key) is not None:
                raise StoreUnavailable(f"cannot {verb} {key.name}: a write of it is queued for the store; try again")

    def _stale(self, key: DocumentKey, error: RevisionConflict) -> WriteConflict:
        self._refresher.hint_soon(key)  # the mirror must show what a second attempt starts from
        return WriteConflict(str(error), error.current, deletion=error.deletion)

    async def repeated(self, key: DocumentKey, author: Author) -> Committed | Queued | None:
        """Return the outcome of a request that was already carried out, or None. Only with revisions."""
        if author.request is None or not self._store.capabilities.revisions:
            return None
        if self._outbox is not None and (queued := await self._outbox.find(key, author)) is not None:
            return Queued(key, queued.number, queued.sha256, queued.size_bytes)
        found = await self._store.find_request(key, author)
        if found is None:
            return None
        async with self._under_way(key):
            return await self._finish(key, found, author)

    async def _store_or_queue(
        self,
        key: Key,
        author: Author,
        commit: Callable[[], Awaitable[tuple[Text, bool]]],
        queue: Callable[[], Awaitable[Queued]],
    ) -> Committed | Queued:
        """Commit and show a write. It is queued behind earlier queued writes of its key, or if the store is down."""
        async with self._under_way(key):
            if self._outbox is not None and self._outbox.pending(key) is not None:
                return await queue()
            await failpoints.reach("writeback.queued")
            await failpoints.reach("writeback.checked")
            try:
                async with self._plain_lock(key):
                    text, merged = await commit()
                    return await self._finish(key, text, author, merged=merged)
            except StoreUnavailable as error:
                self._check_queueable(key, error)
                return await queue()

    async def _commit(
        self, key: DocumentKey, content: Content, expected: Expected, author: Author, *, merge: bool
    ) -> tuple[Text, bool]:
        try:
            return await self._store.write(key, content, expected, author), False
        except RevisionConflict as error:
            if not merge or expected is ANY or error.current is None:
                raise self._stale(key, error) from error
            return await self._merge(key, content, expected, author, error.current), True

    async def _merge(
        self, key: DocumentKey, content: Content, expected: Expected, author: Author, current: Document
    ) -> Text:
        """Commit a text with both changes, or keep this one in a copy and raise WriteConflict."""
        base = await self._reader.text_at(key, expected)
        for _ in range(_MOST_MERGES):
            merged = None
            if base is not None:
                merged = await to_thread.run_sync(merge_texts, base, content.text, current.content)
            if merged is None:
                break
            if merged.text == current.content:
                return Content.of(merged.text).at(current.revision)
            try:
                return await self._store.write(key, Content.of(merged.text), current.revision, author)
            except RevisionConflict as error:
                if error.current is None:
                    break
                current = error.current
        base_revision = expected if isinstance(expected, int) else 0
        # The same text on the same base has the same name, so that a retry keeps one copy.
        copy = copy_key(key, base_revision, content.sha256[:8])
        kept = await self._store.write(copy, content, ANY, replace(author, reason=f"conflict: {key.name}"))
        self._announcer.written(copy, kept.revision, author, what="conflict")
        await self._show(copy, kept)
        raise WriteConflict(
            f"cannot write {key.name}: it is at revision {current.revision} and the changes overlap; "
            f"your text is kept as {copy.name}",
            current,
            copy,
        )

    async def _finish(self, key: Key, text: Text, author: Author, *, merged: bool = False) -> Committed:
        """Announce and show what the store has committed. Even if this fails, the answer is that it was written."""
        written = Committed(key, text.revision, text.sha256, len(text.encoded), merged)
        try:
            await failpoints.reach("writeback.committed")
            self._announcer.written(key, text.revision, author)
            await failpoints.reach("writeback.recorded")
            await self._show(key, text)
            await failpoints.reach("writeback.mirrored")
            await self._manifests.flush(self._mirrors.showing(key))
            await failpoints.reach("writeback.manifest")
        except (OSError, SandboxdError):
            written = replace(written, lagging=len(self._mirrors.showing(key)))
            self._refresher.hint_soon(key)
        with suppress(OSError):
            await failpoints.reach("writeback.answer")
        return written

    async def _show(self, key: Key, text: Text) -> None:
        if isinstance(key, ArtifactKey) and not self._mirrors.showing(key):
            self._warmer.offer(key.session.tenant, text)
            return
        if self._store.has_revisions(key):
            async with self._locks.hold(key):
                if self._reader.queued_text(key) is not None:
                    return  # it is newer, and is shown
                if isinstance(key, DocumentKey) and self._is_new(key):
                    newest = await self._store.read(key)
                    if newest is None:
                        return  # deleted since it was written
                    text = newest
                await self._mirrors.install(key, text, revisioned=True)
        else:
            await self._mirrors.install(key, text, revisioned=False)  # its lock is held since before the write

    def _is_new(self, key: DocumentKey) -> bool:
        """Return whether a mirror lacks the document: its text may have been deleted since, and must not come back."""
        relative = relative_of(key)
        is_missing = any(relative not in mirror.shown for mirror in self._mirrors.showing(key))
        return is_missing and self._store.capabilities.delete_documents

    def _check_name(self, key: DocumentKey) -> None:
        """Raise NameTaken if the mirrors show a document where this one's directory would be, or below it.

        Stores with revisions check names themselves; this is for plain providers and for queued writes.
        """
        for mirror in self._reader.known_mirrors(key):
            other = next(iter(clashing(relative_of(key), mirror.shown)), None)
            if other is not None:
                raise name_taken(key.name, other.partition("/")[2])

    async def _queue(
        self, key: Key, kind: Kind, content: Content, expected: Expected, author: Author, based_on: str | None = None
    ) -> Queued:
        assert self._outbox is not None  # noqa: S101  # checked by the caller
        async with self._locks.hold(key):
            again = await self._outbox.find(key, author)
            if again is not None:
                return Queued(key, again.number, again.sha256, again.size_bytes)
            if isinstance(key, DocumentKey):
                self._check_name(key)
            expected = self._reader.delivered(expected)
            pending = self._outbox.pending(key)
            before = await self._reader.mirrored_text(key) if pending is None else pending.text
            self._check_current(key, kind, expected, based_on, content, before)
            base: Base = expected
            if pending is not None and kind == "write":
                base = "previous"
            elif kind == "write" and expected is ANY:
                # Pin what the mirror shows now, so that a delivery an hour later does not overwrite newer text.
                base = self._reader.delivered(self._reader.shown(key)) if self._reader.known_mirrors(key) else ANY
            shown = _after(kind, content, before)
            number = await self._outbox.keep(key, kind, content.text, base, author, shown, based_on=based_on)
            await failpoints.reach("outbox.kept")
            await self._show_queued(key, shown, number)
        self._announcer.mirror("pending", **fields_of(key), number=number)
        return Queued(key, number, content.sha256, len(content.encoded))

    async def _show_queued(self, key: Key, shown: Text | None, number: int) -> None:
        """Show a queued text. Even if this fails it is kept: the mirrors follow, and the answer stays the same."""
        try:
            if shown is not None:
                text = Text(shown.encoded, shown.sha256, -number)
                await self._mirrors.install(key, text, revisioned=True, pending=True)
            await self._manifests.flush(self._mirrors.showing(key))
        except (OSError, SandboxdError):
            self._refresher.hint_soon(key)

    def _check_current(
        self, key: Key, kind: Kind, expected: Expected, based_on: str | None, content: Content, before: Text | None
    ) -> None:
        """Raise WriteConflict if the outbox or the mirror alone proves that a write to be queued is stale."""
        assert self._outbox is not None  # noqa: S101  # checked by the caller
        pending = self._outbox.pending(key)
        why = None
        if pending is not None and kind == "write" and expected not in (ANY, -pending.number):
            why = "a newer text is queued for the store"
        elif pending is None and self._is_stale(key, expected):
            why = f"expected revision {expected}, and the mirror shows a newer one"
        elif based_on is not None and self._reader.shown_hash(key) not in (based_on, content.sha256):
            why = "the mirror shows another text by now"
        if why is not None:
            name = relative_of(key).rpartition("/")[2]
            raise WriteConflict(f"cannot write {name}: {why}", None if before is None else before.document())

    def _is_stale(self, key: Key, expected: Expected) -> bool:
        """Return whether the mirror alone proves that the document has a newer revision than the expected one."""
        known = self._reader.shown(key)
        if expected is ABSENT:
            return isinstance(known, int)
        if not isinstance(known, int) or not isinstance(expected, int):
            return False
        return self._store.has_revisions(key) and 0 <= expected < known

    def _check_queueable(self, key: Key, error: StoreUnavailable) -> None:
        """Raise the error again unless the write can be delivered later without being applied twice."""
        if isinstance(error, WriteOutcomeUnknown):
            self._refresher.hint_soon(key)  # it may have been written
        is_repeatable = self._store.capabilities.revisions or not isinstance(error, WriteOutcomeUnknown)
        is_temporary = not isinstance(error, StoreCorrupt)
        if not self._queues or self._outbox is None or not is_repeatable or not is_temporary:
            raise error

    def _with_request(self, author: Author) -> Author:
        """Give a write that may be queued a request id, which makes its delivery repeatable."""
        if self._queues and author.request is None:
            return replace(author, request=uuid.uuid4().hex)
        return author

    def _plain_lock(self, key: Key) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._store.has_revisions(key) else self._locks.hold(key)

    @asynccontextmanager
    async def _under_way(self, key: Key) -> AsyncIterator[None]:
        """Shield a write from the caller's cancellation, and let the announcer recognise it in the change feed."""
        await failpoints.reach("writeback.received")
        self._announcer.begin(key)
        try:
            # The store's deadline bounds it; without the shield, a commit could miss its mirrors.
            with anyio.CancelScope(shield=True):
                yield
        finally:
            self._announcer.end(key)


def _after(kind: Kind, content: Content, before: Text | None) -> Text | None:
    """Return what the mirrors show while a write is queued; None if its base is not known."""
    if kind != "append":
        return content.at(0)
    return None if before is None else Text.of(before.encoded + content.encoded, 0)
