"""Stores that each break one promise, in a way that real backends have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anyio.lowlevel import checkpoint

from memo import InMemoryStore
from memo.changes import Change
from memo.documents import ANY, HOST, Author, Document, DocumentKey, DocumentName, Expected, MovedDocument, Revision
from memo.errors import MemoError
from memo.ids import SessionRef
from memo.messages import EncodedMessage, StoredMessage
from memo.sessions import Usage


class LosesAppends(InMemoryStore):
    """Reads, then writes, with a gap for other tasks in between."""

    async def append_document(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Document:
        before = await self.read_document(key)
        await checkpoint()
        return await self.write_document(key, (before.content if before else "") + content, author=author)


class IgnoresExpectedRevision(InMemoryStore):
    """The last writer wins, whatever revision it expected."""

    async def write_document(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Document:
        return await super().write_document(key, content, author=author)


class ComparesTooEarly(InMemoryStore):
    """Compares, then swaps, with a gap for other tasks in between."""

    async def write_document(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Document:
        current = await self.read_document(key)
        if expected is not ANY and (current.revision if current else None) != expected and current is not None:
            return await super().write_document(key, content, expected=expected, author=author)
        await checkpoint()
        return await super().write_document(key, content, author=author)


class TearsWrites:
    """Truncates the text and fills it again in two steps."""

    def __init__(self) -> None:
        self._texts: dict[tuple[str, ...], str] = {}

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        await checkpoint()
        return self._texts.get((tenant, owner, scope, name))

    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        self._texts[tenant, owner, scope, name] = content[: len(content) // 2]
        await checkpoint()
        self._texts[tenant, owner, scope, name] = content


class SwallowsWriteErrors(InMemoryStore):
    """Ignores the errors of writes."""

    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        try:
            await super().write_memory_document(tenant, owner, scope, name, content)
        except MemoError:
            return


class SwallowsReadErrors(InMemoryStore):
    """Returns None during an outage."""

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        try:
            return await super().read_memory_document(tenant, owner, scope, name)
        except MemoError:
            return None


class FindsAnyRequest(InMemoryStore):
    async def find_request(self, key: DocumentKey, request: str) -> Document | None:
        return await self.read_document(key)


class TakesEmptyForAbsent(InMemoryStore):
    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        return await super().read_memory_document(tenant, owner, scope, name) or None


class ForgetsTheTenant(InMemoryStore):
    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        return await super().read_memory_document("all", owner, scope, name)

    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        await super().write_memory_document("all", owner, scope, name, content)


class ForgetsDirectories(InMemoryStore):
    """Keeps only the last segment of a name."""

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        return await super().read_memory_document(tenant, owner, scope, name.rpartition("/")[2])

    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        await super().write_memory_document(tenant, owner, scope, name.rpartition("/")[2], content)


class DeletesByEmptying(InMemoryStore):
    """A deletion that leaves an empty document."""

    async def delete_document(self, key: DocumentKey, *, expected: Expected = ANY, author: Author = HOST) -> Revision:
        await self.write_document(key, "", expected=expected, author=author)
        return replace((await self.document_history(key, 1))[0], deleted=True)


class ForgetsRevisions(InMemoryStore):
    """Starts again at revision 1 after a deletion."""

    async def delete_document(self, key: DocumentKey, *, expected: Expected = ANY, author: Author = HOST) -> Revision:
        deletion = await super().delete_document(key, expected=expected, author=author)
        self._documents._documents.pop(key)
        return deletion


class ResurrectsDocuments(InMemoryStore):
    """Takes a write that is based on a deleted revision."""

    async def write_document(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Document:
        is_deleted = await self.read_document(key) is None and bool(await self.document_history(key))
        return await super().write_document(key, content, expected=ANY if is_deleted else expected, author=author)


class DeletesWhateverIsThere(InMemoryStore):
    async def delete_document(self, key: DocumentKey, *, expected: Expected = ANY, author: Author = HOST) -> Revision:
        return await super().delete_document(key, author=author)


class DeletesTwice(InMemoryStore):
    """Does not recognise the retry of a deletion."""

    async def delete_document(self, key: DocumentKey, *, expected: Expected = ANY, author: Author = HOST) -> Revision:
        return await super().delete_document(key, expected=expected, author=replace(author, request=None))


class AllowsClashes(InMemoryStore):
    """Takes a document whose name is a directory, like a table of names."""

    async def write_document(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Document:
        hidden, self._documents._entries = self._documents._entries, {}
        try:
            document = await super().write_document(key, content, expected=expected, author=author)
            for owner, entries in self._documents._entries.items():
                hidden.setdefault(owner, {}).update(entries)
            return document
        finally:
            self._documents._entries = hidden


class MovesInTwoSteps(InMemoryStore):
    """Writes the new name, then deletes the old one, so that a refused deletion leaves a copy."""

    async def move_document(
        self, key: DocumentKey, to: DocumentName, *, expected: Expected = ANY, author: Author = HOST
    ) -> MovedDocument:
        document = await self.read_document(key)
        await self.write_document(replace(key, name=to), document.content if document else "", author=author)
        return await super().move_document(key, to, expected=expected, author=author)


class MovesOverDocuments(InMemoryStore):
    """Replaces a document that has the new name."""

    async def move_document(
        self, key: DocumentKey, to: DocumentName, *, expected: Expected = ANY, author: Author = HOST
    ) -> MovedDocument:
        if await self.read_document(replace(key, name=to)) is not None:
            await self.delete_document(replace(key, name=to))
        return await super().move_document(key, to, expected=expected, author=author)


class HidesDeletions(InMemoryStore):
    """A feed that reports a deletion like a write."""

    async def _read_changes(self, since: int, limit: int) -> list[Change]:
        return [replace(change, deleted=False) for change in await super()._read_changes(since, limit)]


class ReversesMessages(InMemoryStore):
    async def _load_tail(self, ref: SessionRef, limit: int | None) -> list[StoredMessage]:
        return (await super()._load_tail(ref, limit))[::-1]


class AppendsOneByOne(InMemoryStore):
    """Stores every message in its own transaction."""

    async def _commit_turn(
        self, ref: SessionRef, messages: list[EncodedMessage], usage: Usage | None, request: str | None
    ) -> None:
        for message in messages:
            await super()._commit_turn(ref, [message], None, None)
        await super()._commit_turn(ref, [], usage, request)


class SplitsPairs(InMemoryStore):
    """Cuts exactly at the token budget, even between a call and its result."""

    async def _load_within(self, ref: SessionRef, token_budget: int) -> list[StoredMessage]:
        kept: list[StoredMessage] = []
        for stored in reversed(await self._load_tail(ref, None)):
            if kept and sum(s.tokens for s in kept) + stored.tokens > token_budget:
                break
            kept.append(stored)
        return kept[::-1]


class LosesWhatItCompacts(InMemoryStore):
    async def load_full_history(self, tenant: str, session: str) -> list[dict[str, Any]]:
        return await self.load_all_messages(tenant, session)


class SkipsChanges(InMemoryStore):
    """A feed with a gap, as if the transaction of one sequence number committed after a later one was read."""

    async def _read_changes(self, since: int, limit: int) -> list[Change]:
        return [c for c in await super()._read_changes(since, limit) if c.cursor % 7]


class RepeatsChanges(InMemoryStore):
    async def _read_changes(self, since: int, limit: int) -> list[Change]:
        changes = await super()._read_changes(since, limit)
        return [change for change in changes for _ in range(2 if change.cursor == 3 else 1)]


class SwapsChanges(InMemoryStore):
    async def _read_changes(self, since: int, limit: int) -> list[Change]:
        changes = await super()._read_changes(since, limit)
        return [changes[1], changes[0], *changes[2:]] if len(changes) > 2 else changes


class ReversedTraces:
    def __init__(self) -> None:
        self._kept: dict[SessionRef, list[dict[str, Any]]] = {}

    def __call__(self, session: SessionRef) -> ReversedTrace:
        return ReversedTrace(self._kept.setdefault(session, []))


class ReversedTrace:
    def __init__(self, kept: list[dict[str, Any]]) -> None:
        self._kept = kept

    async def append_envelope(self, envelope: dict[str, Any]) -> None:
        self._kept.insert(0, envelope)

    async def load_envelopes(self) -> list[dict[str, Any]]:
        return list(self._kept)


class TrustsEveryCheckpoint:
    """Orchestration that replays on top of any checkpoint, known or not."""

    def __init__(self, sound: Any) -> None:
        self._sound = sound

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sound, name)

    async def recover_state(self) -> Any:
        state = await self._sound.recover_state()
        snapshot = await self._sound.load_snapshot()
        return type(state)(snapshot, state.events, "checkpoint")


def trusting() -> Any:
    store = InMemoryStore()
    return lambda session: TrustsEveryCheckpoint(store.orchestration_persistence(session))


class NeedsTheNamedEvent:
    """Orchestration that drops a checkpoint whose event is not in the log, also when the log is empty."""

    def __init__(self, sound: Any) -> None:
        self._sound = sound

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sound, name)

    async def recover_state(self) -> Any:
        state = await self._sound.recover_state()
        return state if state.events else type(state)(None, [], "unknown checkpoint")


def dropping() -> Any:
    store = InMemoryStore()
    return lambda session: NeedsTheNamedEvent(store.orchestration_persistence(session))
