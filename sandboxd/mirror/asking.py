"""Asking a store carefully: every call has a deadline, every answer is checked, every failure is one of ours.

A provider is somebody else's code. What it answers is input: the wrong type, a key nobody asked for, an illegal
id, too much of anything and no answer at all are StoreUnavailable, and None alone means "never written".
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import anyio

from memo.changes import Change
from memo.documents import (
    NOTES,
    TODO,
    USER,
    ArtifactEntry,
    ArtifactKey,
    Document,
    DocumentEntry,
    DocumentKey,
    DocumentName,
    Scope,
)
from memo.errors import InvalidContent, InvalidKey, MemoError, ProviderError, TooLarge
from memo.ids import OwnerId, SessionRef, TenantId, ToolCallId, UserId
from memo.limits import StoreLimits, encode_text
from memo.provider import capabilities_of
from sandboxd.errors import StoreUnavailable
from sandboxd.mirror.answers import Key, WriteOutcomeUnknown
from sandboxd.mirror.texts import Item, Listed, Text

MOST_DOCUMENTS = 10_000
MOST_ARTIFACTS = 100_000
_HASH_CHARS = 64


class Source:
    """The provider behind its checks. Holds no state but what the provider can do."""

    def __init__(self, store: object, limits: StoreLimits, timeout_s: float) -> None:
        self.store: Any = store
        self.capabilities = capabilities_of(store)
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

    async def list_session(self, ref: SessionRef, user: UserId) -> list[Item]:
        """Return everything that the session's mirror shows: documents first, then artifacts."""
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
        _check_list(what, entries, MOST_DOCUMENTS)
        for entry in entries:
            if not isinstance(entry, DocumentEntry) or not isinstance(entry.key, DocumentKey):
                raise _misbehaved(what, "it listed something that was not asked for")
            if entry.key != DocumentKey(tenant, owner, scope, DocumentName(entry.key.name)):
                raise _misbehaved(what, "it listed something that was not asked for")
            _check_entry(what, entry.revision, entry.sha256, entry.size_bytes, entry.updated_at)
        _check_unique(what, [entry.key for entry in entries])
        return list(entries)

    async def read_artifacts(self, ref: SessionRef, wanted: Sequence[Item]) -> Iterator[tuple[Item, Text]]:
        """Read listed artifacts in one call if the store can. One that is listed and not there is an error.

        They are checked and hashed as they are taken: there may be megabytes, so take them in a thread.
        """
        what = f"read {len(wanted)} artifacts"
        calls = {item.key.tool_call: item for item in wanted if isinstance(item.key, ArtifactKey)}
        try:
            if self.capabilities.rich_artifacts:
                answer = await self.ask(what, "read_artifacts", ref, list(calls))
            else:
                answer = {c: await self.ask(what, "read_tool_result_artifact", str(ref), str(c)) for c in calls}
        except MemoError as error:
            raise _misbehaved(what, str(error).removeprefix("cannot ")) from error
        if not isinstance(answer, dict) or not answer.keys() <= calls.keys():
            raise _misbehaved(what, "it answered with something that was not asked for")
        if any(answer.get(call) is None for call in calls):
            raise _misbehaved(what, "one that it lists is not there")
        return (
            (item, Text.of(self._encoded(what, answer[call], self.limits.artifact_bytes), item.revision))
            for call, item in calls.items()
        )

    async def _list_artifacts(self, ref: SessionRef) -> Sequence[Item]:
        what = "list the session's artifacts"
        if self.capabilities.rich_artifacts:
            entries = await self.ask(what, "list_artifacts", ref)
            _check_list(what, entries, MOST_ARTIFACTS)
            calls = []
            for entry in entries:
                if not isinstance(entry, ArtifactEntry) or not _is_of(entry.key, ref):
                    raise _misbehaved(what, "it listed something that was not asked for")
                key, revision, sha256, size_bytes, at = entry
                _check_entry(what, revision, sha256, size_bytes, at)
                calls.append(key.tool_call)
            _check_unique(what, calls)
            return entries  # type: ignore[no-any-return]  # each of them was looked at
        if self.capabilities.list_artifacts and self.capabilities.read_artifacts:
            calls = await self.ask(what, "list_tool_result_artifact_ids", str(ref))
            _check_list(what, calls, MOST_ARTIFACTS)
            try:
                keys = [ArtifactKey(ref, ToolCallId(call)) for call in calls]
            except InvalidKey as error:
                raise _misbehaved(what, f"it listed an illegal id ({error})") from error
            _check_unique(what, keys)
            return [Listed(key) for key in keys]
        return []

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


def _is_of(key: object, ref: SessionRef) -> bool:
    """Say whether this is an artifact of the session. `is` first: most stores hand the reference back."""
    return (
        isinstance(key, ArtifactKey)
        and isinstance(key.tool_call, ToolCallId)
        and (key.session is ref or key.session == ref)
    )


def _check_entry(what: str, revision: object, sha256: object, size_bytes: object, at: object) -> None:
    """Check a line of a list. Its hash may become the name of a blob, and must lead nowhere else on the disk."""
    if not isinstance(revision, int) or not isinstance(size_bytes, int) or not isinstance(at, datetime):
        raise _misbehaved(what, "it listed a revision, a size or a time that is none")
    if not (isinstance(sha256, str) and len(sha256) == _HASH_CHARS and sha256.isascii() and sha256.isalnum()):
        raise _misbehaved(what, "it listed a hash that is none")


def _check_list(what: str, answer: object, most: int) -> None:
    if not isinstance(answer, list):
        raise _misbehaved(what, f"it answered with {type(answer).__name__} instead of a list")
    if len(answer) > most:
        raise _misbehaved(what, f"it listed {len(answer)}, and the limit is {most}")


def _check_unique(what: str, keys: Sequence[Key | ToolCallId]) -> None:
    if len(set(keys)) != len(keys):
        raise _misbehaved(what, "it listed the same one twice")
