"""BaseStore: the behaviour that all stores share, built on a few abstract methods.

A store implements the abstract methods, each of which is atomic, and inherits the rest, so that two stores cannot
disagree on what a call means. The only state here is the options.
"""

from __future__ import annotations

import inspect
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from memo.changes import ChangeStream
from memo.compaction import Compaction, CompactionOptions, cut_index, is_due, plan_compaction
from memo.documents import (
    ANY,
    EMPTY_SHA256,
    HOST,
    ArtifactEntry,
    ArtifactKey,
    Author,
    Document,
    DocumentEntry,
    DocumentKey,
    DocumentName,
    Expected,
    MovedDocument,
    Revision,
    Scope,
    unified_diff,
)
from memo.errors import Absent, InvalidContent
from memo.ids import AgentId, OwnerId, SessionId, SessionRef, TenantId, ToolCallId, UserId, UserRef
from memo.memory_index import MemoryIndexEntry, index_of
from memo.messages import EncodedMessage, Message, StoredMessage, encode_message
from memo.orchestration import Event, RecoveredState
from memo.provider import SessionMemory
from memo.sessions import Session, SessionMeta, Summarize, Usage
from memo.stores.journal import Journal, JournaledOrchestration, JournaledTraces
from memo.stores.options import StoreOptions
from memo.stores.prepared_text import check_request
from memo.traces import Envelope

__all__ = ["BaseStore", "StoreOptions"]

_log = logging.getLogger("memo.stores")


class BaseStore(ABC):
    def __init__(self, options: StoreOptions | None = None) -> None:
        self.options = options or StoreOptions()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    # Documents

    @abstractmethod
    async def read_document(self, key: DocumentKey, revision: int | None = None) -> Document | None: ...

    @abstractmethod
    async def write_document(
        self, key: DocumentKey, content: str, *, expected: Expected = ANY, author: Author = HOST
    ) -> Document: ...

    @abstractmethod
    async def append_document(self, key: DocumentKey, content: str, *, author: Author = HOST) -> Document: ...

    @abstractmethod
    async def delete_document(
        self, key: DocumentKey, *, expected: Expected = ANY, author: Author = HOST
    ) -> Revision: ...

    @abstractmethod
    async def move_document(
        self, key: DocumentKey, to: DocumentName, *, expected: Expected = ANY, author: Author = HOST
    ) -> MovedDocument: ...

    @abstractmethod
    async def list_documents(
        self, tenant: TenantId, owner: OwnerId, scope: Scope, prefix: str = ""
    ) -> list[DocumentEntry]: ...

    @abstractmethod
    async def document_history(self, key: DocumentKey, limit: int | None = None) -> list[Revision]: ...

    @abstractmethod
    async def redact_document(self, key: DocumentKey, revision: int, *, author: Author = HOST) -> list[int]: ...

    async def diff_document(self, key: DocumentKey, before: int, after: int) -> str:
        old = await self._state_at(key, before) if before else None
        return unified_diff(key.name, old, await self._state_at(key, after))

    async def restore_document(self, key: DocumentKey, revision: int, *, author: Author = HOST) -> Document:
        old = await self._revision(key, revision)  # revisions never change, so this needs no transaction
        return await self.write_document(key, old.content, author=author)

    async def _revision(self, key: DocumentKey, revision: int) -> Document:
        document = await self.read_document(key, revision)
        if document is None:
            if await self._is_deletion(key, revision):
                raise Absent(f"cannot restore revision {revision} of {key.name}: it is a deletion; name an earlier one")
            raise Absent(f"cannot find revision {revision} of {key.name}")
        return document

    async def _state_at(self, key: DocumentKey, revision: int) -> Document:
        """Return a revision for comparison: a deletion counts as an empty text."""
        document = await self.read_document(key, revision)
        if document is None and await self._is_deletion(key, revision):
            return Document("", revision, EMPTY_SHA256)
        return document or await self._revision(key, revision)

    async def _is_deletion(self, key: DocumentKey, revision: int) -> bool:
        return any(r.revision == revision and r.deleted for r in await self.document_history(key))

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        document = await self.read_document(DocumentKey.of(tenant, owner, scope, name))
        return None if document is None else document.content

    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        await self.write_document(DocumentKey.of(tenant, owner, scope, name), content)

    async def append_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        await self.append_document(DocumentKey.of(tenant, owner, scope, name), content)

    async def build_memory_index(self, tenant: str, user: str, session: str) -> list[MemoryIndexEntry]:
        """Return the user's documents, then the session's, each with path, tokens, age and summary."""
        entries: list[DocumentEntry] = []
        for scope, owner in ((Scope.USER, OwnerId(user)), (Scope.SESSION, OwnerId(session))):
            entries += await self.list_documents(TenantId(tenant), owner, scope)
        return index_of(entries, self.options.clock())

    # Artifacts

    @abstractmethod
    async def write_artifact(self, key: ArtifactKey, content: str) -> ArtifactEntry: ...

    @abstractmethod
    async def read_artifacts(self, session: SessionRef, tool_calls: Iterable[str]) -> dict[ToolCallId, str]: ...

    @abstractmethod
    async def read_artifact_range(self, key: ArtifactKey, start: int, length: int) -> bytes | None: ...

    @abstractmethod
    async def list_artifacts(self, session: SessionRef) -> list[ArtifactEntry]: ...

    async def read_tool_result_artifact(self, session_ref: SessionRef | str, tool_call_id: str) -> str | None:
        key = ArtifactKey.of(session_ref, tool_call_id)
        return (await self.read_artifacts(key.session, [key.tool_call])).get(key.tool_call)

    async def write_tool_result_artifact(self, session_ref: SessionRef | str, tool_call_id: str, content: str) -> None:
        await self.write_artifact(ArtifactKey.of(session_ref, tool_call_id), content)

    async def list_tool_result_artifact_ids(self, session_ref: SessionRef | str) -> list[str]:
        return [entry.key.tool_call for entry in await self.list_artifacts(SessionRef.parse(session_ref))]

    # Snapshots

    async def list_memory(self, session: SessionRef, user: UserId) -> SessionMemory:
        own = await self.list_documents(session.tenant, OwnerId(session.session), Scope.SESSION)
        of_user = await self.list_documents(session.tenant, OwnerId(user), Scope.USER)
        artifacts = await self.list_artifacts(session)
        return SessionMemory(
            [*own, *of_user], [(e.key.tool_call, e.revision, e.sha256, e.size_bytes) for e in artifacts]
        )

    async def read_memory(self, keys: Sequence[DocumentKey | ArtifactKey]) -> list[bytes | None]:
        texts: dict[DocumentKey | ArtifactKey, str] = {}
        calls: dict[SessionRef, list[ToolCallId]] = {}
        for key in keys:
            if isinstance(key, ArtifactKey):
                calls.setdefault(key.session, []).append(key.tool_call)
            elif (document := await self.read_document(key)) is not None:
                texts[key] = document.content
        for session, wanted in calls.items():
            found = await self.read_artifacts(session, wanted)
            texts.update({ArtifactKey(session, call): text for call, text in found.items()})
        return [texts[key].encode() if key in texts else None for key in keys]

    # Changes

    @abstractmethod
    def changes(self, since: int = 0) -> ChangeStream: ...

    @abstractmethod
    async def last_change(self) -> int: ...

    # Sessions

    @abstractmethod
    async def _make_session(self, ref: SessionRef, user: UserId, agent: AgentId) -> Session:
        """Return the session, created if it is new, or raise SessionTaken."""

    @abstractmethod
    async def _get_session(self, ref: SessionRef) -> Session | None: ...

    @abstractmethod
    async def _load_tail(self, ref: SessionRef, limit: int | None) -> list[StoredMessage]:
        """Return the newest visible messages, oldest first."""

    @abstractmethod
    async def _load_within(self, ref: SessionRef, token_budget: int) -> list[StoredMessage]: ...

    @abstractmethod
    async def _load_history(self, ref: SessionRef) -> list[Message]: ...

    @abstractmethod
    async def _visible_size(self, ref: SessionRef) -> tuple[int, int]:
        """Return the number of visible messages and their tokens."""

    @abstractmethod
    async def _commit_turn(
        self, ref: SessionRef, messages: list[EncodedMessage], usage: Usage | None, request: str | None
    ) -> None:
        """Append the messages and add the usage. A request that was already committed changes nothing."""

    @abstractmethod
    async def _commit_compaction(self, ref: SessionRef, compaction: Compaction, summary: EncodedMessage) -> bool:
        """Archive, summarise and extend the notes. Change nothing and return False if the log begins differently."""

    @abstractmethod
    async def list_sessions(self, tenant: str | None = None) -> list[Session]: ...

    @abstractmethod
    async def list_sessions_by_user(self, tenant: str, user: str) -> list[SessionMeta]: ...

    @abstractmethod
    async def list_users(self) -> list[UserRef]: ...

    async def get_or_create(self, tenant: str, user: str, agent: str, session: str | None = None) -> Session:
        ref = SessionRef(TenantId(tenant), SessionId(session if session is not None else str(uuid.uuid4())))
        return await self._make_session(ref, UserId(user), AgentId(agent))

    async def get_session(self, tenant: str, session: str) -> Session | None:
        return await self._get_session(SessionRef.of(tenant, session))

    async def load_messages(self, tenant: str, session: str, limit: int | None = None) -> list[Message]:
        if limit is not None and limit < 0:
            raise InvalidContent("cannot load messages: the limit must be at least 0")
        return [stored.message for stored in await self._load_tail(SessionRef.of(tenant, session), limit)]

    async def load_all_messages(self, tenant: str, session: str) -> list[Message]:
        return await self.load_messages(tenant, session)

    async def load_messages_with_budget(self, tenant: str, session: str, token_budget: int = 100_000) -> list[Message]:
        return [stored.message for stored in await self._load_within(SessionRef.of(tenant, session), token_budget)]

    async def load_full_history(self, tenant: str, session: str) -> list[Message]:
        return await self._load_history(SessionRef.of(tenant, session))

    async def append_messages(
        self, tenant: str, session: str, messages: Sequence[Mapping[str, Any]], *, request: str | None = None
    ) -> None:
        ref = SessionRef.of(tenant, session)
        check_request(request)
        await self._commit_turn(ref, await self._encode(messages), None, request)

    async def record_turn(
        self, tenant: str, session: str, usage: Usage | Mapping[str, Any], *, request: str | None = None
    ) -> None:
        ref = SessionRef.of(tenant, session)
        check_request(request)
        await self._commit_turn(ref, [], Usage.parse(usage), request)

    async def append_turn(
        self,
        tenant: str,
        session: str,
        messages: Sequence[Mapping[str, Any]],
        usage: Usage | Mapping[str, Any],
        *,
        request: str | None = None,
    ) -> None:
        ref = SessionRef.of(tenant, session)
        check_request(request)
        await self._commit_turn(ref, await self._encode(messages), Usage.parse(usage), request)

    async def compact_if_needed(
        self,
        tenant: str,
        session: str,
        summarize: Summarize,
        options: CompactionOptions | Mapping[str, Any] | None = None,
        *,
        trigger_tokens: int | None = None,
        compact_fraction: float | None = None,
        min_messages: int | None = None,
        force: bool | None = None,
        workspace_snapshot: str | None = None,
    ) -> bool:
        ref = SessionRef.of(tenant, session)
        options = CompactionOptions.parse(
            options,
            trigger_tokens=trigger_tokens,
            compact_fraction=compact_fraction,
            min_messages=min_messages,
            force=force,
            workspace_snapshot=workspace_snapshot,
        )
        if not is_due(*await self._visible_size(ref), options):
            return False
        log = await self._load_tail(ref, None)
        cut = cut_index(log, options.compact_fraction)
        if cut == 0:
            return False
        summary = summarize([stored.message for stored in log[:cut]])
        if inspect.isawaitable(summary):
            summary = await summary
        plan = plan_compaction(log, cut, summary, options, self.options.clock())
        if plan is None:
            _log.warning("cannot compact session %s: the summariser returned no text", ref)
            return False
        (encoded,) = await self._encode([plan.summary])
        return await self._commit_compaction(ref, plan, encoded)

    async def _encode(self, messages: Sequence[Mapping[str, Any]]) -> list[EncodedMessage]:
        if isinstance(messages, str | bytes | Mapping):
            raise InvalidContent("cannot store these messages: expected a list of JSON objects")
        bodies = [encode_message(message, self.options.limits.message_bytes) for message in messages]
        counts = await self.options.counter.count_messages(messages)
        return [EncodedMessage(b, c.tokens, c.exact) for b, c in zip(bodies, counts, strict=True)]

    # Traces, orchestration, inspection

    @abstractmethod
    def _journal(self, ref: SessionRef) -> Journal: ...

    def session_trace_store(self, session_ref: SessionRef | str) -> JournaledTraces:
        """Return the session's trace store; a TraceStoreFactory."""
        return JournaledTraces(self._journal(SessionRef.parse(session_ref)), self.options.limits.message_bytes)

    def orchestration_persistence(self, session_ref: SessionRef | str) -> JournaledOrchestration:
        """Return the session's orchestration persistence; an OrchestrationFactory."""
        return JournaledOrchestration(self._journal(SessionRef.parse(session_ref)), self.options.limits.message_bytes)

    async def load_trace_envelopes(self, tenant: str, session: str) -> list[Envelope]:
        return await self.session_trace_store(SessionRef.of(tenant, session)).load_envelopes()

    async def load_orchestration_events(self, tenant: str, session: str) -> list[Event]:
        return await self.orchestration_persistence(SessionRef.of(tenant, session)).load_events()

    async def load_orchestration_state(self, tenant: str, session: str) -> RecoveredState | None:
        state = await self.orchestration_persistence(SessionRef.of(tenant, session)).recover_state()
        is_unused = state.source == "no checkpoint" and not state.events
        return None if is_unused else state
