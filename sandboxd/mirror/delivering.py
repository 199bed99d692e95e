"""Delivering what waits in the outbox, in order per document, as soon as the store takes it.

A document that moved on meanwhile is never overwritten: the text that waited becomes a copy beside it. An entry is
settled only after the store has it, and its request makes a second try the same write.
"""

from __future__ import annotations

from dataclasses import replace

import anyio
import structlog

from memo.documents import ANY, ArtifactKey, Author, DocumentKey, Expected
from memo.errors import MemoError, RevisionConflict
from sandboxd import failpoints
from sandboxd.errors import HostError, StoreUnavailable
from sandboxd.mirror import committing, merge
from sandboxd.mirror.announcing import Announcer, fields_of
from sandboxd.mirror.asking import Source
from sandboxd.mirror.outbox import Chain, Entry, Outbox
from sandboxd.mirror.refreshing import Refresher
from sandboxd.mirror.retrying import Backoff
from sandboxd.mirror.texts import Text
from sandboxd.mirror.turns import Turns

_log = structlog.get_logger()

_MOST_FAILURES = 3


class Deliverer:
    def __init__(
        self, outbox: Outbox, source: Source, turns: Turns, refresher: Refresher, announcer: Announcer
    ) -> None:
        self._outbox = outbox
        self._source = source
        self._turns = turns
        self._refresher = refresher
        self._announcer = announcer
        self._last_tried = 0

    async def run(self) -> None:
        """Deliver for ever: waits for entries, and for a store that takes them."""
        backoff = Backoff()
        while True:
            await self._outbox.news.wait()
            try:
                await self._deliver_all()
                backoff.reset()
            except (StoreUnavailable, HostError, OSError) as error:
                self._outbox.news.set()
                if backoff.is_first:
                    _log.warning("cannot deliver kept writes yet", waiting=len(self._outbox), error=str(error))
                await backoff.wait()

    async def _deliver_all(self) -> None:
        while True:
            self._outbox.news = anyio.Event()
            heads = await self._outbox.heads()
            if not heads:
                return
            failures: list[StoreUnavailable] = []
            for number in _from(heads, self._last_tried):
                self._last_tried = number
                try:
                    await self._deliver(number)
                except StoreUnavailable as error:
                    # One document that the store cannot take must not hold up the others; a store that is down does.
                    # Which of the two it is, the next pass finds out: it goes on with the others.
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
                if self._source.has_revisions(entry.key):
                    chain = await self._commit(entry, chain)
                else:
                    async with self._turns.of(entry.key):
                        chain = await self._commit(entry, chain)
                await failpoints.reach("outbox.committed")
                is_last = await self._outbox.settle(entry, chain)
        except MemoError as error:
            # Refused for good, even beside its document. It is kept where it is, and holds up nobody.
            _log.error("cannot deliver a kept write", number=number, error=str(error))
            is_last = await self._outbox.refuse(entry, str(error), error.code)
            self._announcer.mirror("refused", **fields_of(entry.key), number=number, code=error.code)
        finally:
            self._announcer.end(entry.key)
        if is_last:
            await self._refresher.hint(entry.key)

    async def _commit(self, entry: Entry, chain: Chain | None) -> Chain | None:
        if isinstance(entry.key, ArtifactKey):
            # In conflict it is refused and kept: no copy of an artifact could stand beside it.
            text = await committing.commit_artifact(self._source, entry.key, entry.content, entry.based_on)
            self._announcer.written(entry.key, text.revision, entry.author)
            return None
        try:
            if entry.kind == "append":
                return await self._append(entry, entry.key, chain)
            return await self._write(entry, entry.key, chain)
        except RevisionConflict:
            return await self._keep_copy(entry, entry.key)
        except MemoError:
            if entry.kind == "append":  # it no longer fits into its document
                return await self._keep_copy(entry, entry.key)
            raise

    async def _append(self, entry: Entry, key: DocumentKey, chain: Chain | None) -> Chain:
        if not self._source.capabilities.revisions:
            current = await self._source.read(key)
            if current is not None and current.sha256 == entry.attempt:
                return Chain(key.name, current.revision)  # the last try got through, and its answer did not
            before = b"" if current is None else current.encoded
            await self._outbox.attempt(entry.number, Text.of(before + entry.content.encode()).sha256)
        text = await committing.append(self._source, key, entry.content, entry.author)
        self._announcer.written(key, text.revision, entry.author)
        # Later writes of this key go on where the earlier ones went: beside it, if those were in conflict.
        return Chain(key.name, text.revision) if chain is None or chain.target == key.name else chain

    async def _write(self, entry: Entry, key: DocumentKey, chain: Chain | None) -> Chain:
        target, expected = key, entry.expected
        if expected == "previous":
            if chain is None:  # what it was based on was refused, so nobody knows what it would overwrite
                raise RevisionConflict(f"cannot write {key.name}: the text it is based on was not taken")
            target, expected = replace(key, name=chain.target), chain.revision
        text = await self._try(entry, target, expected)
        self._announcer.written(target, text.revision, entry.author)
        if target != key:
            await self._refresher.hint(target)
        return Chain(target.name, text.revision)

    async def _try(self, entry: Entry, target: DocumentKey, expected: Expected) -> Text:
        if not self._source.capabilities.revisions:
            current = await self._source.read(target)
            if current is not None and current.encoded == entry.content.encode():
                return current  # there already: by an earlier try, or by somebody of the same mind
        return await committing.commit(self._source, target, entry.content, expected, entry.author)

    async def _keep_copy(self, entry: Entry, key: DocumentKey) -> Chain:
        base = entry.expected if isinstance(entry.expected, int) and entry.expected > 0 else 0
        copy = merge.copy_key(key, base, f"q{entry.number}")
        author = Author(entry.author.actor, entry.author.session, f"conflict: {key.name}", entry.author.request)
        text = await self._try(replace(entry, author=author), copy, ANY)
        self._announcer.written(copy, text.revision, author, what="conflict")
        _log.warning("a kept write was in conflict", number=entry.number, copy=copy.name)
        await self._refresher.hint(copy)
        return Chain(copy.name, text.revision)


def _from(heads: list[int], last: int) -> list[int]:
    """Return the heads in the order of a round that stopped at `last`: those after it first."""
    return [number for number in heads if number > last] + [number for number in heads if number <= last]
