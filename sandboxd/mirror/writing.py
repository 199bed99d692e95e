"""The one door for writes: store first, then mirrors, then the answer. Agents, routes and host jobs all come here.

A stale write changes nothing and is answered with the newer text; with `merge` both changes are kept, in one text
or in two documents. With the store down a write fails clearly, or is kept in the outbox and says so.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from memo.documents import ABSENT, ANY, ArtifactKey, Author, Document, DocumentKey, Expected, sha256_of
from memo.errors import MemoError, RevisionConflict
from memo.ids import SessionRef
from memo.limits import encode_text
from sandboxd import failpoints
from sandboxd.errors import SandboxdError, StoreUnavailable
from sandboxd.mirror import committing, manifests
from sandboxd.mirror.announcing import Announcer, fields_of
from sandboxd.mirror.answers import Key, Queued, WriteConflict, WriteOutcomeUnknown, Written
from sandboxd.mirror.asking import Source
from sandboxd.mirror.live import Mirror, Mirrors
from sandboxd.mirror.merge import copy_key
from sandboxd.mirror.merge import merge as merge_texts
from sandboxd.mirror.outbox import Base, Kind, Outbox
from sandboxd.mirror.refreshing import Refresher
from sandboxd.mirror.texts import Text, number_of, prefix_of, relative_of
from sandboxd.mirror.turns import Turns
from sandboxd.mirror.warming import Warmer

_MOST_MERGES = 10
_NEVER = -1  # no document is ever at this revision


class Door:
    def __init__(
        self,
        source: Source,
        mirrors: Mirrors,
        turns: Turns,
        refresher: Refresher,
        announcer: Announcer,
        warmer: Warmer,
        outbox: Outbox | None,
        *,
        keeps: bool,
    ) -> None:
        self._source = source
        self._mirrors = mirrors
        self._turns = turns
        self._refresher = refresher
        self._announcer = announcer
        self._warmer = warmer
        self._outbox = outbox
        self._keeps = keeps
        self._comparing = Turns()

    async def write(
        self, key: DocumentKey, content: str, expected: Expected, author: Author, *, merge: bool
    ) -> Written | Queued:
        committing.check_writable(self._source, key)
        encode_text("document", content, self._source.limits.document_bytes)
        author = self._signed(author)
        expected = self._real(expected)
        async with self._received(key):
            if self._waits(key):
                return await self._queue(key, "write", content, expected, author)
            await failpoints.reach("writeback.queued")
            await failpoints.reach("writeback.checked")
            try:
                async with self._turn(key):
                    text, merged = await self._commit(key, content, expected, author, merge=merge)
                    return await self._finish(key, text, author, merged=merged)
            except StoreUnavailable as error:
                self._check_keepable(key, error)
                return await self._queue(key, "write", content, expected, author)

    async def append(self, key: DocumentKey, content: str, author: Author) -> Written | Queued:
        committing.check_writable(self._source, key, appends=True)
        encode_text("document", content, self._source.limits.document_bytes)
        return await self._simple(
            key, "append", content, self._signed(author), partial(committing.append, self._source, key, content)
        )

    async def write_artifact(
        self, key: ArtifactKey, content: str, author: Author, *, based_on: str | None = None
    ) -> Written | Queued:
        committing.check_writable(self._source, key)
        encode_text("artifact", content, self._source.limits.artifact_bytes)

        async def commit(_: Author) -> Text:
            async with self._comparing.of(key):
                return await committing.commit_artifact(self._source, key, content, based_on)

        return await self._simple(key, "artifact", content, self._signed(author), commit, based_on)

    async def restore(self, key: DocumentKey, revision: int, author: Author) -> Written:
        async with self._received(key):
            what = f"restore revision {revision} of {key.name}"
            restored = await self._source.ask(what, "restore_document", key, revision, author=author, writes=True)
            return await self._finish(key, self._source.text_of(what, restored), author)

    async def repeated(self, key: DocumentKey, author: Author) -> Written | Queued | None:
        """Return what a request became that was carried out before, or None. Only stores with revisions know."""
        if author.request is None or not self._source.capabilities.revisions:
            return None
        if self._outbox is not None and (waiting := await self._outbox.find(key, author)) is not None:
            return Queued(key, waiting.number, waiting.sha256, waiting.size_bytes)
        what = f"look for an earlier write of {key.name}"
        try:
            # A store looks for the request first and compares after that, so this either finds it or changes nothing.
            found = await self._source.ask(what, "write_document", key, "", expected=_NEVER, author=author, writes=True)
        except RevisionConflict:
            return None
        async with self._received(key):
            return await self._finish(key, self._source.text_of(what, found), author)

    def shown_hash(self, key: Key) -> str:
        for mirror in self._mirrors.showing(key):
            if (shown := mirror.shown.get(relative_of(key))) is not None:
                return shown.sha256
        return ""

    def shown(self, key: Key) -> Expected:
        """Return what the mirrors show of a key: the revision that an edit of it is based on."""
        if (waiting := self._pending_text(key)) is not None:
            return waiting.revision  # none of the store's, and so no one else's base
        for mirror in self._mirrors.showing(key):
            if (shown := mirror.shown.get(relative_of(key))) is not None:
                return shown.revision
        return ABSENT

    async def newest(self, key: DocumentKey) -> Document | None:
        """Return the document as it will be once what waits for the store is delivered."""
        text = self._pending_text(key) or await self._source.read(key)
        return None if text is None else text.document()

    async def text_at(self, key: DocumentKey, revision: Expected) -> str | None:
        """Return what a document was at a revision, or None if that can no longer be told."""
        revision = self._real(revision)
        if revision is ABSENT:
            return ""
        if not isinstance(revision, int):
            return None
        if revision < 0:  # a write that waits for the store
            waiting = self._pending_text(key)
            return None if waiting is None or waiting.revision != revision else waiting.encoded.decode()
        if self._source.capabilities.revisions:
            try:
                text = await self._source.read_revision(key, revision)
            except MemoError:  # redacted, or the store keeps no history
                return None
            return None if text is None or text.revision != revision else text.encoded.decode()
        found = await self._mirrors.in_thread(self._mirrors.blobs.read_by_prefix, key.tenant, prefix_of(revision))
        return None if found is None or number_of(sha256_of(found)) != revision else found.decode()

    async def mirrored(self, ref: SessionRef, key: DocumentKey) -> Document | None:
        """Return what the session's mirror shows, and at which revision; None if that cannot be told."""
        mirror = self._mirrors.of_session(ref)
        if mirror is None or not mirror.is_known:
            return None
        text = await self._file(mirror, key)
        if text is None and relative_of(key) in mirror.shown:
            async with self._turns.of(key):  # it was just being replaced
                text = await self._file(mirror, key)
        return None if text is None else text.document()

    async def _simple(
        self,
        key: Key,
        kind: Kind,
        content: str,
        author: Author,
        commit: Callable[[Author], Awaitable[Text]],
        based_on: str | None = None,
    ) -> Written | Queued:
        async with self._received(key):
            if self._waits(key):
                return await self._queue(key, kind, content, ANY, author, based_on)
            await failpoints.reach("writeback.queued")
            await failpoints.reach("writeback.checked")
            try:
                async with self._turn(key):
                    return await self._finish(key, await commit(author), author)
            except StoreUnavailable as error:
                self._check_keepable(key, error)
                return await self._queue(key, kind, content, ANY, author, based_on)

    async def _commit(
        self, key: DocumentKey, content: str, expected: Expected, author: Author, *, merge: bool
    ) -> tuple[Text, bool]:
        try:
            return await committing.commit(self._source, key, content, expected, author), False
        except RevisionConflict as error:
            if not merge or expected is ANY or error.current is None:
                self._refresher.hint_soon(key)  # who tries again must see what to begin from
                raise WriteConflict(str(error), error.current) from error
            return await self._merge(key, content, expected, author, error.current), True

    async def _merge(
        self, key: DocumentKey, content: str, expected: Expected, author: Author, current: Document
    ) -> Text:
        """Commit a text with both changes, or keep ours in a copy and raise WriteConflict."""
        base = await self.text_at(key, expected)
        for _ in range(_MOST_MERGES):
            merged = None
            if base is not None:
                merged = await to_thread.run_sync(merge_texts, base, content, current.content)
            if merged is None:
                break
            if merged.text == current.content:
                return Text.of(merged.text.encode(), current.revision)
            try:
                return await committing.commit(self._source, key, merged.text, current.revision, author)
            except RevisionConflict as error:
                if error.current is None:
                    break
                current = error.current
        base_revision = expected if isinstance(expected, int) else 0
        copy = copy_key(key, base_revision, sha256_of(content.encode())[:8])
        # The same text on the same base has the same name, so that a retry keeps one copy.
        kept = await committing.commit(
            self._source, copy, content, ANY, replace(author, reason=f"conflict: {key.name}")
        )
        self._announcer.written(copy, kept.revision, author, what="conflict")
        await self._show(copy, kept)
        raise WriteConflict(
            f"cannot write {key.name}: it is at revision {current.revision} and the changes overlap; "
            f"your text is kept as {copy.name}",
            current,
            copy,
        )

    async def _finish(self, key: Key, text: Text, author: Author, *, merged: bool = False) -> Written:
        """The store has it: whatever happens from here on, the answer is that it was written."""
        written = Written(key, text.revision, text.sha256, len(text.encoded), merged)
        try:
            await failpoints.reach("writeback.committed")
            self._announcer.written(key, text.revision, author)
            await failpoints.reach("writeback.recorded")
            await self._show(key, text)
            await failpoints.reach("writeback.mirrored")
            await manifests.flush(self._mirrors, self._mirrors.showing(key))
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
        if self._source.has_revisions(key):
            async with self._turns.of(key):
                if self._pending_text(key) is None:  # else what waits is newer, and is shown
                    await self._mirrors.install(key, text, revisioned=True)
        else:
            await self._mirrors.install(key, text, revisioned=False)  # the turn is held since before the write

    async def _queue(
        self, key: Key, kind: Kind, content: str, expected: Expected, author: Author, based_on: str | None = None
    ) -> Queued:
        assert self._outbox is not None  # noqa: S101  # who comes here has asked
        encoded = content.encode()
        async with self._turns.of(key):
            again = await self._outbox.find(key, author)
            if again is not None:
                return Queued(key, again.number, again.sha256, again.size_bytes)
            expected = self._real(expected)
            waiting = self._outbox.pending(key)
            before = await self._mirrored(key) if waiting is None else waiting.text
            base: Base = expected
            if waiting is not None and kind == "write":
                if expected not in (ANY, -waiting.number):
                    raise WriteConflict(
                        f"cannot write {_name(key)}: a newer text is waiting for the store",
                        before.document() if before else None,
                    )
                base = "previous"
            elif kind == "write" and expected is ANY:
                # Whoever writes meanwhile must not be overwritten by a delivery an hour later.
                base = self._real(self.shown(key)) if self._known_mirrors(key) else ANY
            if waiting is None and self._is_stale(key, expected):
                raise WriteConflict(
                    f"cannot write {_name(key)}: expected revision {expected}, and the mirror shows a newer one",
                    before.document() if before else None,
                )
            if based_on is not None and self.shown_hash(key) not in (based_on, sha256_of(encoded)):
                raise WriteConflict(
                    f"cannot write {_name(key)}: the mirror shows another text by now",
                    before.document() if before else None,
                )
            shown = _after(kind, content, before)
            number = await self._outbox.keep(key, kind, content, base, author, shown, based_on=based_on)
            await failpoints.reach("outbox.kept")
            text = None if shown is None else Text(shown.encoded, shown.sha256, -number)
            if text is not None:
                await self._mirrors.install(key, text, revisioned=True, pending=True)
        await manifests.flush(self._mirrors, self._mirrors.showing(key))
        self._announcer.mirror("pending", **fields_of(key), number=number)
        return Queued(key, number, sha256_of(encoded), len(encoded))

    async def _mirrored(self, key: Key) -> Text | None:
        for mirror in self._known_mirrors(key):
            if relative_of(key) in mirror.shown:
                return await self._file(mirror, key)
            return Text.of(b"", 0)  # a mirror is complete: what it does not show was never written
        return None

    async def _file(self, mirror: Mirror, key: Key) -> Text | None:
        """Return what a mirror shows of a key; None if it shows nothing, or not what it is meant to show."""
        shown = mirror.shown.get(relative_of(key))
        if shown is None:
            return None
        found = await self._mirrors.in_thread(_read, Path(mirror.root, relative_of(key)))
        return Text(found, shown.sha256, shown.revision) if sha256_of(found) == shown.sha256 else None

    def _real(self, expected: Expected) -> Expected:
        """Translate the number of an entry that has been delivered meanwhile into its revision."""
        if isinstance(expected, int) and expected < 0 and self._outbox is not None:
            return self._outbox.delivered(-expected) or expected
        return expected

    def _is_stale(self, key: Key, expected: Expected) -> bool:
        """Say whether the mirror alone proves that the document has moved on."""
        known = self.shown(key)
        if expected is ABSENT:
            return isinstance(known, int)
        if not isinstance(known, int) or not isinstance(expected, int):
            return False
        return self._source.has_revisions(key) and 0 <= expected < known

    def _waits(self, key: Key) -> bool:
        """Say whether older writes of this key wait for the store: then this one waits behind them."""
        return self._outbox is not None and self._outbox.pending(key) is not None

    def _pending_text(self, key: Key) -> Text | None:
        """Return what the mirrors show of a write that waits for the store; None if there is none, or if nobody knows
        what it makes of the text."""
        waiting = None if self._outbox is None else self._outbox.pending(key)
        if waiting is None or waiting.text is None:
            return None
        return Text(waiting.text.encoded, waiting.text.sha256, -waiting.number)

    def _known_mirrors(self, key: Key) -> list[Mirror]:
        """Return the mirrors that tell what there is: one that is not filled yet shows less."""
        return [mirror for mirror in self._mirrors.showing(key) if mirror.is_known]

    def _check_keepable(self, key: Key, error: StoreUnavailable) -> None:
        """Raise the error again unless the write may be kept and delivered later without being done twice."""
        if isinstance(error, WriteOutcomeUnknown):
            self._refresher.hint_soon(key)  # it may have been written
        is_repeatable = self._source.capabilities.revisions or not isinstance(error, WriteOutcomeUnknown)
        if not self._keeps or self._outbox is None or not is_repeatable:
            raise error

    def _signed(self, author: Author) -> Author:
        if self._keeps and author.request is None:
            return replace(author, request=uuid.uuid4().hex)
        return author

    def _turn(self, key: Key) -> AbstractAsyncContextManager[None]:
        return nullcontext() if self._source.has_revisions(key) else self._turns.of(key)

    @asynccontextmanager
    async def _received(self, key: Key) -> AsyncIterator[None]:
        """Around a write: it is not cut short by a caller who leaves, and the feed knows whose it is."""
        await failpoints.reach("writeback.received")
        self._announcer.begin(key)
        try:
            # The store's deadline bounds it; without the shield, a commit could miss its mirrors.
            with anyio.CancelScope(shield=True):
                yield
        finally:
            self._announcer.end(key)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:  # its mirror is being removed
        return b""


def _name(key: Key) -> str:
    return relative_of(key).rpartition("/")[2]


def _after(kind: Kind, content: str, before: Text | None) -> Text | None:
    """Return what the mirrors are to show while a write waits; None if nobody knows."""
    if kind != "append":
        return Text.of(content.encode(), 0)
    return None if before is None else Text.of(before.encoded + content.encode(), 0)
