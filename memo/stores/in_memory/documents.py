"""Documents, artifacts and their changes in memory.

No method awaits, so each is atomic in an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from memo.changes import Change
from memo.document_names import check_new_name, name_exists
from memo.documents import (
    ANY,
    EMPTY_SHA256,
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
    check_deletion,
    conflict,
    deletion_of,
    is_expected,
    redacted_error,
    redaction_targets,
    reused_request,
)
from memo.errors import Absent, InvalidKey
from memo.ids import OwnerId, SessionRef, TenantId, ToolCallId
from memo.stores.options import StoreOptions
from memo.stores.prepared_text import PreparedText


@dataclass(slots=True)
class _Version:
    """`text` is None for a redacted revision and for a deletion."""

    revision: Revision
    text: PreparedText | None
    request: str | None


_OwnerKey = tuple[TenantId, OwnerId, Scope]


class InMemoryDocuments:
    def __init__(self, options: StoreOptions, changed: Callable[[], None]) -> None:
        self._options = options
        self._changed = changed
        self._documents: dict[DocumentKey, list[_Version]] = {}
        self._entries: dict[_OwnerKey, dict[DocumentName, DocumentEntry]] = {}
        self._artifacts: dict[SessionRef, dict[ToolCallId, ArtifactEntry]] = {}
        self._artifact_texts: dict[str, bytes] = {}
        self._changes: list[Change] = []

    def read(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        versions = self._documents.get(key, [])
        number = len(versions) if revision is None else revision
        return _document(key, versions[number - 1]) if 1 <= number <= len(versions) else None

    def find_request(self, key: DocumentKey, request: str | None) -> Document | None:
        """Return the revision that this request already committed, if any: a retry commits nothing."""
        version = self._version_of(key, request)
        if version is not None and version.revision.deleted:
            raise reused_request(key.name)
        return None if version is None else _document(key, version)

    def find_deletion(self, key: DocumentKey, request: str | None) -> Revision | None:
        """Return the deletion that this request already committed, if any."""
        version = self._version_of(key, request)
        if version is not None and not version.revision.deleted:
            raise reused_request(key.name)
        return None if version is None else version.revision

    def _version_of(self, key: DocumentKey, request: str | None) -> _Version | None:
        if request is None:
            return None
        return next((v for v in self._documents.get(key, []) if v.request == request), None)

    def commit(
        self,
        key: DocumentKey,
        text: PreparedText,
        expected: Expected,
        author: Author,
        moved: DocumentName | None = None,
    ) -> Document:
        versions = self._documents.get(key, [])
        newest = versions[-1].revision if versions else None
        is_deleted = newest is not None and newest.deleted
        if not is_expected(len(versions) or None, expected, deleted=is_deleted):
            raise conflict(key, expected, self.read(key), deletion=len(versions) if is_deleted else None)
        of_owner = self._entries.setdefault(_owner(key), {})
        if key.name not in of_owner:
            check_new_name(key.name, of_owner, self._options.limits.documents)
        number, now = len(versions) + 1, self._options.clock()
        revision = Revision(
            number, author.actor, author.session, author.reason, now, text.sha256, text.size_bytes, moved=moved
        )
        self._documents.setdefault(key, versions).append(_Version(revision, text, author.request))
        of_owner[key.name] = DocumentEntry(
            key, number, text.sha256, text.size_bytes, now, text.summary, text.tokens, text.tokens_exact
        )
        self._announce(key, number, text.sha256)
        return Document(text.text, number, text.sha256)

    def delete(
        self,
        key: DocumentKey,
        expected: Expected,
        author: Author,
        moved: DocumentName | None = None,
        verb: str = "delete",
    ) -> Revision:
        versions = self._documents.get(key, [])
        check_deletion(verb, key, versions[-1].revision if versions else None, self.read(key), expected)
        deletion = deletion_of(len(versions) + 1, author, self._options.clock(), moved)
        versions.append(_Version(deletion, None, author.request))
        del self._entries[_owner(key)][key.name]
        self._announce(key, deletion.revision, EMPTY_SHA256, deleted=True)
        return deletion

    def move(self, key: DocumentKey, to: DocumentName, expected: Expected, author: Author) -> MovedDocument:
        target = replace(key, name=to)
        repeated = self.find_deletion(key, author.request)
        if repeated is not None:
            document = self.find_request(target, author.request)
            if document is None:
                raise reused_request(key.name)
            return MovedDocument(repeated, document)
        if to == key.name:
            raise InvalidKey(f"cannot move {to}: both names are the same")
        versions = self._documents.get(key, [])
        check_deletion("move", key, versions[-1].revision if versions else None, self.read(key), expected)
        others = self._entries[_owner(key)].keys() - {key.name}
        if to in others:
            raise name_exists(to)
        check_new_name(to, others, self._options.limits.documents)
        text = versions[-1].text
        assert text is not None  # noqa: S101  # the newest text is never redacted
        deletion = self.delete(key, expected, author, to, "move")
        return MovedDocument(deletion, self.commit(target, text, ANY, author, key.name))

    def list_of(self, tenant: TenantId, owner: OwnerId, scope: Scope, prefix: str) -> list[DocumentEntry]:
        of_owner = self._entries.get((tenant, owner, scope), {})
        return [entry for name, entry in sorted(of_owner.items()) if name.startswith(prefix)]

    def history(self, key: DocumentKey, limit: int | None) -> list[Revision]:
        newest_first = [version.revision for version in reversed(self._documents.get(key, []))]
        return newest_first if limit is None else newest_first[: max(limit, 0)]

    def redact(self, key: DocumentKey, revision: int) -> list[int]:
        versions = self._documents.get(key, [])
        targets = redaction_targets([version.revision for version in versions], revision)
        if not targets:
            raise Absent(f"cannot find revision {revision} of {key.name}")
        for target in targets:
            version = versions[target - 1]
            version.text = None
            version.revision = replace(version.revision, redacted=True)
        return targets

    def commit_artifact(self, key: ArtifactKey, text: PreparedText) -> ArtifactEntry:
        kept = self._artifacts.setdefault(key.session, {})
        old = kept.get(key.tool_call)
        if old is not None and old.sha256 == text.sha256:
            return old
        revision = old.revision + 1 if old else 1
        entry = ArtifactEntry(key, revision, text.sha256, text.size_bytes, self._options.clock())
        kept[key.tool_call] = entry
        self._artifact_texts.setdefault(text.sha256, text.encoded)
        self._announce(key, revision, text.sha256)
        return entry

    def read_artifacts(self, session: SessionRef, tool_calls: Iterable[ToolCallId]) -> dict[ToolCallId, str]:
        kept = self._artifacts.get(session, {})
        return {call: self._artifact_texts[kept[call].sha256].decode() for call in tool_calls if call in kept}

    def read_artifact_range(self, key: ArtifactKey, start: int, length: int) -> bytes | None:
        entry = self._artifacts.get(key.session, {}).get(key.tool_call)
        if entry is None:
            return None
        begin = max(start, 0)
        return self._artifact_texts[entry.sha256][begin : begin + max(length, 0)]

    def list_artifacts(self, session: SessionRef) -> list[ArtifactEntry]:
        return [entry for _, entry in sorted(self._artifacts.get(session, {}).items())]

    def read_changes(self, since: int, limit: int) -> list[Change]:
        begin = max(since, 0)
        return self._changes[begin : begin + limit]

    def last_change(self) -> int:
        return len(self._changes)

    def _announce(self, key: DocumentKey | ArtifactKey, revision: int, sha256: str, *, deleted: bool = False) -> None:
        self._changes.append(Change(len(self._changes) + 1, key, revision, sha256, self._options.clock(), deleted))
        self._changed()


def _owner(key: DocumentKey) -> _OwnerKey:
    return key.tenant, key.owner, key.scope


def _document(key: DocumentKey, version: _Version) -> Document | None:
    if version.revision.deleted:
        return None
    if version.text is None:
        raise redacted_error(key.name, version.revision.revision)
    return Document(version.text.text, version.revision.revision, version.text.sha256)
