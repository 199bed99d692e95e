"""Documents, artifacts and their changes in memory.

No method awaits, so each is atomic in an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from memo.changes import Change
from memo.documents import (
    ArtifactEntry,
    ArtifactKey,
    Author,
    Document,
    DocumentEntry,
    DocumentKey,
    Expected,
    Revision,
    Scope,
    conflict,
    is_expected,
    redacted_error,
    redaction_targets,
)
from memo.errors import Absent
from memo.ids import OwnerId, SessionRef, TenantId, ToolCallId
from memo.stores.options import StoreOptions
from memo.stores.prepared_text import PreparedText


@dataclass(slots=True)
class _Version:
    revision: Revision
    text: PreparedText | None
    request: str | None


class InMemoryDocuments:
    def __init__(self, options: StoreOptions, changed: Callable[[], None]) -> None:
        self._options = options
        self._changed = changed
        self._documents: dict[DocumentKey, list[_Version]] = {}
        self._entries: dict[DocumentKey, DocumentEntry] = {}
        self._artifacts: dict[SessionRef, dict[ToolCallId, ArtifactEntry]] = {}
        self._artifact_texts: dict[str, bytes] = {}
        self._changes: list[Change] = []

    def read(self, key: DocumentKey, revision: int | None = None) -> Document | None:
        versions = self._documents.get(key, [])
        number = len(versions) if revision is None else revision
        return _document(key, versions[number - 1]) if 1 <= number <= len(versions) else None

    def find_request(self, key: DocumentKey, request: str | None) -> Document | None:
        """Return the revision that this request already committed, if any: a retry commits nothing."""
        if request is None:
            return None
        versions = self._documents.get(key, [])
        return next((_document(key, v) for v in versions if v.request == request), None)

    def commit(self, key: DocumentKey, text: PreparedText, expected: Expected, author: Author) -> Document:
        versions = self._documents.get(key, [])
        if not is_expected(len(versions) or None, expected):
            raise conflict(key, expected, self.read(key))
        number, now = len(versions) + 1, self._options.clock()
        revision = Revision(number, author.actor, author.session, author.reason, now, text.sha256, text.size_bytes)
        self._documents.setdefault(key, versions).append(_Version(revision, text, author.request))
        self._entries[key] = DocumentEntry(
            key, number, text.sha256, text.size_bytes, now, text.summary, text.tokens, text.tokens_exact
        )
        self._announce(key, number, text.sha256)
        return Document(text.text, number, text.sha256)

    def list_of(self, tenant: TenantId, owner: OwnerId, scope: Scope) -> list[DocumentEntry]:
        keys = sorted(k for k in self._entries if (k.tenant, k.owner, k.scope) == (tenant, owner, scope))
        return [self._entries[key] for key in keys]

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

    def _announce(self, key: DocumentKey | ArtifactKey, revision: int, sha256: str) -> None:
        self._changes.append(Change(len(self._changes) + 1, key, revision, sha256, self._options.clock()))
        self._changed()


def _document(key: DocumentKey, version: _Version) -> Document:
    if version.text is None:
        raise redacted_error(key.name, version.revision.revision)
    return Document(version.text.text, version.revision.revision, version.text.sha256)
