"""Delivery: writes queued entries of the outbox to the store, in order per document, once the store accepts them.

A document that has a newer revision is never overwritten: the queued text becomes a separate copy. An entry is settled
only after the store has it, and its request id makes a second attempt the same write.
"""

from __future__ import annotations

from dataclasses import replace

import anyio
import structlog

from memo.documents import ANY, ArtifactKey, Author, DocumentKey, Expected, sha256_of
from memo.errors import MemoError, RevisionConflict
from sandboxd import failpoints
from sandboxd.errors import HostError, StoreUnavailable
from sandboxd.memory import merge
from sandboxd.memory.announcer import Announcer, fields_of
from sandboxd.memory.key_locks import KeyLocks
from sandboxd.memory.outbox import Chain, Entry, Outbox
from sandboxd.memory.refresher import Refresher
from sandboxd.memory.store_client import StoreClient
from sandboxd.memory.text import Content, Text
from sandboxd.retries import Retries

_log = structlog.get_logger()

_MOST_FAILURES = 3


class Delivery:
    def __init__(
        self, outbox: Outbox, store: StoreClient, locks: KeyLocks, refresher: Refresher, announcer: Announcer
    ) -> None:
        self._outbox = outbox
        self._store = store
        self._locks = locks
        self._refresher = refresher
        self._announcer = announcer
        self._last_number = 0

    async def run(self) -> None:
        """Deliver entries for ever, waiting for them and for the store."""
        retries = Retries()
        while True:
            await self._outbox.news.wait()
            try:
                await self._deliver_all()
                retries.reset()
            except (StoreUnavailable, HostError, OSError) as error:
                self._outbox.news.set()
                if retries.is_first:
                    _log.warning("cannot deliver queued writes yet", waiting=len(self._outbox), error=str(error))
                await retries.wait()

    async def _deliver_all(self) -> None:
        while True:
            self._outbox.news = anyio.Event()
            heads = await self._outbox.heads()
            if not heads:
                return
            failures: list[StoreUnavailable] = []
            for number in _round_robin(heads, self._last_number):
                self._last_number = number
                try:
                    await self._deliver(number)
                except StoreUnavailable as error:
                    # One bad document must not delay the others, but a store that is down may. The next pass, which
                    # continues after this entry, tells the two apart.
                    failures.append(error)
                    if len(failures) == _MOST_FAILURES:
                        break
            if failures:
                raise failures[0]

    async def _deliver(self, number: int) -> None:
        entry, chain = await self._outbox.entry(number)
        self._announcer.begin(entry.key)
        try:
            with anyio.CancelScope(shield=True):  # bounded by the store's deadline
                if self._store.has_revisions(entry.key):
                    chain = await self._commit(entry, chain)
                else:
                    async with self._locks.hold(entry.key):
                        chain = await self._commit(entry, chain)
                await failpoints.reach("outbox.committed")
                is_last = await self._outbox.settle(entry, chain)
        except MemoError as error:
            # Refused permanently, even as a copy. It stays in the outbox and blocks no other entry.
            _log.error("cannot deliver a queued write", number=number, error=str(error))
            is_last = await self._outbox.refuse(entry, str(error), error.code)
            self._announcer.mirror("refused", **fields_of(entry.key), number=number, code=error.code)
        finally:
            self._announcer.end(entry.key)
        if is_last:
            await self._refresher.hint(entry.key)

    async def _commit(self, entry: Entry, chain: Chain | None) -> Chain | None:
        if isinstance(entry.key, ArtifactKey):
            # A conflict refuses and keeps it, because an artifact has no name for a copy.
            text = await self._store.write_artifact(entry.key, Content.of(entry.content), entry.based_on)
            self._announcer.written(entry.key, text.revision, entry.author)
            return None
        try:
            if entry.kind == "append":
                return await self._append(entry, entry.key, chain)
            return await self._write(entry, entry.key, chain)
        except RevisionConflict:
            return await self._keep_copy(entry, entry.key)
        except MemoError:
            if entry.kind == "append":  # the document no longer has room for it
                return await self._keep_copy(entry, entry.key)
            raise

    async def _append(self, entry: Entry, key: DocumentKey, chain: Chain | None) -> Chain:
        content = Content.of(entry.content)
        if not self._store.capabilities.revisions:
            current = await self._store.read(key)
            if current is not None and current.sha256 == entry.attempt:
                return Chain(key.name, current.revision)  # the last attempt succeeded, but its answer was lost
            before = b"" if current is None else current.encoded
            await self._outbox.attempt(entry.number, sha256_of(before + content.encoded))
        text = await self._store.append(key, content, entry.author)
        self._announcer.written(key, text.revision, entry.author)
        # Later writes of this key follow the earlier ones: into the copy, if those were in conflict.
        return Chain(key.name, text.revision) if chain is None or chain.target == key.name else chain

    async def _write(self, entry: Entry, key: DocumentKey, chain: Chain | None) -> Chain:
        target, expected = key, entry.expected
        if expected == "previous":
            if chain is None:  # its base was refused, so it might overwrite unknown text
                raise RevisionConflict(f"cannot write {key.name}: the text it is based on was refused")
            target, expected = replace(key, name=chain.target), chain.revision
        text = await self._write_once(entry, target, expected)
        self._announcer.written(target, text.revision, entry.author)
        if target != key:
            await self._refresher.hint(target)
        return Chain(target.name, text.revision)

    async def _write_once(self, entry: Entry, target: DocumentKey, expected: Expected) -> Text:
        content = Content.of(entry.content)
        if not self._store.capabilities.revisions:
            current = await self._store.read(target)
            if current is not None and current.encoded == content.encoded:
                return current  # already there: an earlier attempt, or an equal write
        return await self._store.write(target, content, expected, entry.author)

    async def _keep_copy(self, entry: Entry, key: DocumentKey) -> Chain:
        base = entry.expected if isinstance(entry.expected, int) and entry.expected > 0 else 0
        copy = merge.copy_key(key, base, f"q{entry.number}")
        author = Author(entry.author.actor, entry.author.session, f"conflict: {key.name}", entry.author.request)
        text = await self._write_once(replace(entry, author=author), copy, ANY)
        self._announcer.written(copy, text.revision, author, what="conflict")
        _log.warning("a queued write was in conflict; it is kept as a copy", number=entry.number, copy=copy.name)
        await self._refresher.hint(copy)
        return Chain(copy.name, text.revision)


def _round_robin(heads: list[int], last: int) -> list[int]:
    """Return the heads in round-robin order: those after `last` first."""
    return [number for number in heads if number > last] + [number for number in heads if number <= last]
