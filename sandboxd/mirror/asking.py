"""Asking a store carefully: every call has a deadline, every answer is checked, every failure is one of ours.

A provider is somebody else's code. What it answers is input: the wrong type, a key nobody asked for, an illegal
id, too much of anything and no answer at all are StoreUnavailable, and None alone means "never written".
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import anyio
from anyio import to_thread

from memo.changes import Change
from memo.documents import (
    NOTES,
    TODO,
    USER,
    ArtifactKey,
    Document,
    DocumentEntry,
    DocumentKey,
    Scope,
)
from memo.errors import InvalidContent, InvalidKey, MemoError, ProviderError, TooLarge
from memo.ids import OwnerId, SessionRef, TenantId, ToolCallId, UserId
from memo.limits import StoreLimits, encode_text
from memo.provider import ArtifactLine, SessionMemory, capabilities_of
from sandboxd.errors import StoreUnavailable
from sandboxd.mirror import listing
from sandboxd.mirror.answers import Key, WriteOutcomeUnknown
from sandboxd.mirror.texts import Item, Line, Listed, Text, is_artifact, lines_of, number_of, relative_of

_INLINE = 1000
"""A longer list is checked in a thread."""


class Source:
    """The provider behind its checks. Holds no state but what the provider can do."""

    def __init__(self, store: object, limits: StoreLimits, timeout_s: float) -> None:
        self.store: Any = store
        self.capabilities = capabilities_of(store)
        self.has_snapshots = (
            self.capabilities.snapshots and self.capabilities.revisions and self.capabilities.rich_artifacts
        )
        self.limits = limits
        self._timeout_s = timeout_s

    def has_revisions(self, key: Key) -> bool:
        """Say whether revisions of this key only grow; else its number stands for its content."""
        return self.capabilities.rich_artifacts if isinstance(key, ArtifactKey) else self.capabilities.revisions

    async def ask(self, what: str, method: str, *args: Any, writes: bool = False, **named: Any) -> Any:
        """Call a method of the store. Its refusals (InvalidKey, RevisionConflict, …) pass; failures are ours."""
        try:
            with anyio.fail_after(self._timeout_s):
                answer = getattr(self.store, method)(*args, **named)
                if not inspect.isawaitable(answer):
                    raise _misbehaved(what, f"{method} is not asynchronous")
                return await answer
        except TimeoutError as error:
            if writes:
                raise WriteOutcomeUnknown(
                    f"cannot {what}: the store did not answer within {self._timeout_s:g} s, "
                    "and the change may or may not have happened"
                ) from error
            raise StoreUnavailable(f"cannot {what}: the store did not answer within {self._timeout_s:g} s") from error
        except ProviderError as error:
            kind = WriteOutcomeUnknown if writes and error.outcome_unknown else StoreUnavailable
            raise kind(f"cannot {what}: {str(error).removeprefix('cannot ')}") from error
        except (MemoError, StoreUnavailable):
            raise
        except Exception as error:  # a foreign provider may raise anything; its message may hold anything, too
            raise StoreUnavailable(f"cannot {what}: the store failed with {type(error).__name__}") from error

    async def read(self, key: Key, hint: Change | None = None) -> Text | None:
        """Return the newest text, or None if it was never written."""
        try:
            if isinstance(key, ArtifactKey):
                return await self._read_artifact(key, hint)
            return await self.read_revision(key, None)
        except MemoError as error:  # to read is to ask for nothing special: a refusal is a failure
            raise _misbehaved(f"read {name_of(key)}", str(error).removeprefix("cannot ")) from error

    async def read_revision(self, key: DocumentKey, revision: int | None) -> Text | None:
        what = f"read {key.name}"
        if not self.capabilities.revisions:
            content = await self.ask(what, "read_memory_document", key.tenant, key.owner, str(key.scope), key.name)
            return None if content is None else Text.of(self._encoded(what, content, self.limits.document_bytes))
        document = await self.ask(what, "read_document", key, revision)
        if document is None:
            return None
        return self.text_of(what, document)

    def text_of(self, what: str, document: object) -> Text:
        """Check a document that the store returned."""
        if not isinstance(document, Document) or not isinstance(document.revision, int) or document.revision < 1:
            raise _misbehaved(what, "it answered with something that is no document")
        text = Text.of(self._encoded(what, document.content, self.limits.document_bytes), document.revision)
        if text.sha256 != document.sha256:
            raise _misbehaved(what, "the text does not have the hash that came with it")
        return text

    def takes_many(self, relative: str) -> bool:
        """Say whether this text may be read together with others, in one call."""
        return self.has_snapshots or (self.capabilities.rich_artifacts and is_artifact(relative))

    async def lines(self, ref: SessionRef, user: UserId) -> list[Line]:
        """Return a line for every file that the session's mirror is to show."""
        if not self.has_snapshots:
            return [self._line_of(item) for item in await self.list_session(ref, user)]
        what = "list the session's memory"
        try:
            listed = await self.ask(what, "list_memory", ref, user)
            if not isinstance(listed, SessionMemory):
                raise ValueError("it is no list of a session's memory")
            documents, artifacts = listed
            listing.check_list(artifacts, listing.MOST_ARTIFACTS)
            listing.check_list(documents, listing.MOST_DOCUMENTS)
            listing.check_documents([e for e in documents if not _is_of_user(e)], DocumentKey.of_session(ref, NOTES))
            listing.check_documents(
                [e for e in documents if _is_of_user(e)], DocumentKey.of_user(ref.tenant, user, USER)
            )
            lines: list[Line] = [(relative_of(e.key), e.revision, e.sha256, e.size_bytes) for e in documents]
            if len(artifacts) < _INLINE:
                return lines + _checked_lines(artifacts)
            return lines + await to_thread.run_sync(_checked_lines, artifacts)
        except (MemoError, ValueError) as error:
            raise _misbehaved(what, str(error).removeprefix("cannot ")) from error

    async def read_texts(self, keys: Sequence[Key]) -> list[object]:
        """Return the newest text of each, as the store hands it out, in one call. Only of those that it `takes_many`.

        Nothing of it is checked, for there may be megabytes: whoever uses one takes it through `encoded`, in a thread.
        """
        what = f"read {len(keys)} texts"
        try:
            if self.has_snapshots:
                answer = await self.ask(what, "read_memory", keys)
                if not isinstance(answer, list) or len(answer) != len(keys):
                    raise _misbehaved(what, "it is not an answer for each")
                return answer
            artifacts = [key for key in keys if isinstance(key, ArtifactKey)]
            found = await self.ask(what, "read_artifacts", artifacts[0].session, [key.tool_call for key in artifacts])
            if not isinstance(found, dict):
                raise _misbehaved(what, f"it answered with {type(found).__name__} instead of texts by id")
            return [found.get(key.tool_call) for key in artifacts]
        except MemoError as error:
            raise _misbehaved(what, str(error).removeprefix("cannot ")) from error

    def encoded(self, key: Key, text: object) -> bytes:
        """Check a text that the store handed out."""
        limit_bytes = self.limits.artifact_bytes if isinstance(key, ArtifactKey) else self.limits.document_bytes
        what = f"read {name_of(key)}"
        if not isinstance(text, bytes):
            return self._encoded(what, text, limit_bytes)
        if len(text) > limit_bytes:
            raise _misbehaved(what, f"it has {len(text)} bytes, and the limit is {limit_bytes}")
        try:
            text.decode()
        except UnicodeDecodeError:
            raise _misbehaved(what, "it is not UTF-8") from None
        return text

    async def list_session(self, ref: SessionRef, user: UserId) -> list[Item]:
        """Return everything that the session's mirror shows, and since when: documents first, then artifacts."""
        try:
            listed: list[Item] = []
            listed += await self.list_documents(ref.tenant, OwnerId(ref.session), Scope.SESSION)
            listed += await self.list_documents(ref.tenant, OwnerId(user), Scope.USER)
            listed += await self._list_artifacts(ref)
            return listed
        except MemoError as error:
            raise _misbehaved("list the session's memory", str(error).removeprefix("cannot ")) from error

    async def list_documents(self, tenant: TenantId, owner: OwnerId, scope: Scope) -> list[Listed]:
        if not self.capabilities.list_documents:
            names = (NOTES, TODO) if scope is Scope.SESSION else (USER,)
            return [Listed(DocumentKey(tenant, owner, scope, name)) for name in names]
        return [
            Listed(entry.key, entry.revision, entry.sha256, entry.size_bytes, entry.updated_at)
            for entry in await self.entries(tenant, owner, scope)
        ]

    async def entries(self, tenant: TenantId, owner: OwnerId, scope: Scope) -> list[DocumentEntry]:
        what = f"list the documents of this {scope}"
        entries = await self.ask(what, "list_documents", tenant, owner, scope)
        try:
            listing.check_list(entries, listing.MOST_DOCUMENTS)
            listing.check_documents(entries, DocumentKey(tenant, owner, scope, NOTES))
        except ValueError as error:
            raise _misbehaved(what, str(error)) from None
        return list(entries)

    async def _list_artifacts(self, ref: SessionRef) -> Sequence[Item]:
        what = "list the session's artifacts"
        try:
            if self.capabilities.rich_artifacts:
                entries = await self.ask(what, "list_artifacts", ref)
                listing.check_list(entries, listing.MOST_ARTIFACTS)
                listing.check_artifacts(entries, ref)
                return entries  # type: ignore[no-any-return]  # each of them was looked at
            if self.capabilities.list_artifacts and self.capabilities.read_artifacts:
                calls = await self.ask(what, "list_tool_result_artifact_ids", str(ref))
                listing.check_list(calls, listing.MOST_ARTIFACTS)
                keys = [ArtifactKey(ref, ToolCallId(call)) for call in calls]
                listing.check_unique(keys)
                return [Listed(key) for key in keys]
            return []
        except InvalidKey as error:
            raise _misbehaved(what, f"it listed an illegal id ({error})") from error
        except ValueError as error:
            raise _misbehaved(what, str(error)) from None

    def _line_of(self, item: Item) -> Line:
        key, revision, sha256, size_bytes, _ = item
        if sha256 is not None and not self.has_revisions(key):
            revision = number_of(sha256)
        return relative_of(key), revision, sha256, size_bytes

    async def _read_artifact(self, key: ArtifactKey, hint: Change | None) -> Text | None:
        if not self.capabilities.read_artifacts:
            return None
        text = await self.read_artifact(key)
        if text is None or not self.capabilities.rich_artifacts:
            return text
        if hint is not None and hint.sha256 == text.sha256:
            return Text(text.encoded, text.sha256, hint.revision)
        for item in await self._list_artifacts(key.session):
            if item.key == key and item.sha256 == text.sha256:
                return Text(text.encoded, text.sha256, item.revision or 0)
        # It changed between two questions: revision 0 never wins, and the change itself is on its way.
        return Text(text.encoded, text.sha256, 0)

    async def read_artifact(self, key: ArtifactKey) -> Text | None:
        """Return the newest text of an artifact, under the number that stands for its content."""
        what = f"read artifact {key.tool_call}"
        content = await self.ask(what, "read_tool_result_artifact", str(key.session), str(key.tool_call))
        return None if content is None else Text.of(self._encoded(what, content, self.limits.artifact_bytes))

    def _encoded(self, what: str, content: object, limit_bytes: int) -> bytes:
        try:
            return encode_text("text", content, limit_bytes)
        except (TooLarge, InvalidContent) as error:
            raise _misbehaved(what, str(error).removeprefix("cannot ")) from None


def name_of(key: Key) -> str:
    return f"artifact {key.tool_call}" if isinstance(key, ArtifactKey) else key.name


def _misbehaved(what: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(f"cannot {what}: the store's answer cannot be used: {why}")


def _is_of_user(entry: object) -> bool:
    key = getattr(entry, "key", None)
    return isinstance(key, DocumentKey) and key.scope is Scope.USER


def _checked_lines(artifacts: list[ArtifactLine]) -> list[Line]:
    listing.check_lines(artifacts)
    return lines_of(artifacts)
