"""MirrorReader: a document as it is now, as it was at a revision, or as a session's mirror shows it.

Combines the store, the mirrors and the outbox, whose queued writes are newer than the store. It changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from memo.content import number_of
from memo.documents import ABSENT, Document, DocumentKey, Expected, sha256_of
from memo.errors import MemoError
from memo.ids import SessionRef
from sandboxd.memory.key_locks import KeyLocks
from sandboxd.memory.mirror import Mirror, Mirrors
from sandboxd.memory.outbox import Outbox
from sandboxd.memory.outcomes import Key
from sandboxd.memory.store_client import StoreClient
from sandboxd.memory.text import Text, prefix_of, relative_of


class MirrorReader:
    def __init__(self, store: StoreClient, mirrors: Mirrors, locks: KeyLocks, outbox: Outbox | None) -> None:
        self._store = store
        self._mirrors = mirrors
        self._locks = locks
        self._outbox = outbox

    async def newest(self, key: DocumentKey) -> Document | None:
        """Return the document as it will be once its queued writes are delivered."""
        text = self.queued_text(key) or await self._store.read(key)
        return None if text is None else text.document()

    async def text_at(self, key: DocumentKey, revision: Expected) -> str | None:
        """Return the document's text at a revision, or None if it is no longer known."""
        revision = self.delivered(revision)
        if revision is ABSENT:
            return ""
        if not isinstance(revision, int):
            return None
        if revision < 0:  # a queued write
            queued = self.queued_text(key)
            return None if queued is None or queued.revision != revision else queued.encoded.decode()
        if self._store.capabilities.revisions:
            try:
                text = await self._store.read_revision(key, revision)
            except MemoError:  # redacted, or the store keeps no history
                return None
            return None if text is None or text.revision != revision else text.encoded.decode()
        found = await self._mirrors.in_thread(self._mirrors.blobs.read_by_prefix, key.tenant, prefix_of(revision))
        return None if found is None or number_of(sha256_of(found)) != revision else found.decode()

    async def mirrored(self, ref: SessionRef, key: DocumentKey) -> Document | None:
        """Return what the session's mirror shows, with its revision; None if it shows nothing or is not known."""
        mirror = self._mirrors.of_session(ref)
        if mirror is None or not mirror.is_known:
            return None
        text = await self._read_file(mirror, key)
        if text is None and relative_of(key) in mirror.shown:
            async with self._locks.hold(key):  # it was being replaced at that moment
                text = await self._read_file(mirror, key)
        return None if text is None else text.document()

    async def mirrored_text(self, key: Key) -> Text | None:
        """Return what the key's mirrors show, an empty text if they show nothing, None without a known mirror."""
        for mirror in self.known_mirrors(key):
            if relative_of(key) in mirror.shown:
                return await self._read_file(mirror, key)
            return Text.of(b"", 0)  # a mirror is complete: what it does not show was never written
        return None

    def shown(self, key: Key) -> Expected:
        """Return the revision that the mirrors show, on which an edit is based."""
        if (queued := self.queued_text(key)) is not None:
            return queued.revision  # negative, so never equal to a revision of the store
        for mirror in self._mirrors.showing(key):
            if (shown := mirror.shown.get(relative_of(key))) is not None:
                return shown.revision
        return ABSENT

    def shown_hash(self, key: Key) -> str:
        """Return the hash of what the mirrors show; empty if they show nothing."""
        for mirror in self._mirrors.showing(key):
            if (shown := mirror.shown.get(relative_of(key))) is not None:
                return shown.sha256
        return ""

    def queued_text(self, key: Key) -> Text | None:
        """Return a key's text after its queued writes; None if there are none, or if their base is not known."""
        pending = None if self._outbox is None else self._outbox.pending(key)
        if pending is None or pending.text is None:
            return None
        return Text(pending.text.encoded, pending.text.sha256, -pending.number)

    def delivered(self, expected: Expected) -> Expected:
        """Replace the number of a queued write with its revision, if it has been delivered."""
        if isinstance(expected, int) and expected < 0 and self._outbox is not None:
            return self._outbox.delivered(-expected) or expected
        return expected

    def known_mirrors(self, key: Key) -> list[Mirror]:
        """Return the key's mirrors that are filled; others are incomplete."""
        return [mirror for mirror in self._mirrors.showing(key) if mirror.is_known]

    async def _read_file(self, mirror: Mirror, key: Key) -> Text | None:
        """Return what a mirror shows of a key; None if it shows nothing, or the file has an unexpected content."""
        shown = mirror.shown.get(relative_of(key))
        if shown is None:
            return None
        found = await self._mirrors.in_thread(_read, Path(mirror.root, relative_of(key)))
        return Text(found, shown.sha256, shown.revision) if sha256_of(found) == shown.sha256 else None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:  # its mirror is being removed
        return b""
