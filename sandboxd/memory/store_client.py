"""StoreClient: what the daemon reads from a store and writes to it, with checked answers.

A provider is third-party code, so its answers are untrusted input. A wrong type, a key that was not requested, an
illegal id, an oversized text and a missing answer all raise StoreUnavailable; only None means "never written".
"""

from __future__ import annotations

from collections.abc import Sequence

from anyio import to_thread

from memo.changes import Change
from memo.compaction import CompactionOptions
from memo.content import number_of
from memo.documents import (
    ANY,
    NOTES,
    TODO,
    USER,
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
    conflict,
    is_expected,
)
from memo.errors import (
    InvalidContent,
    InvalidKey,
    MemoError,
    ProviderError,
    RevisionConflict,
    Timeout,
    TooLarge,
    Unavailable,
    Unsupported,
)
from memo.ids import OwnerId, SessionRef, TenantId, ToolCallId, UserId
from memo.leases import Lease
from memo.ledger import Settlement
from memo.limits import StoreLimits, encode_text
from memo.provider import ArtifactLine, SessionMemory, capabilities_of
from memo.sessions import Summarize, awaitable, compaction_arguments
from sandboxd.errors import StoreUnavailable
from sandboxd.memory import listing
from sandboxd.memory.outcomes import Key, WriteConflict, WriteOutcomeUnknown
from sandboxd.memory.store_calls import StoreCalls, unusable
from sandboxd.memory.text import Content, Item, Line, Listed, Text, is_artifact, lines_of, relative_of

_NEVER = -1  # a revision that no document ever has
_CHECKED_INLINE = 1000
"""A longer list is checked in a thread."""


class StoreClient(StoreCalls):
    """The provider behind its checks. Keeps no state except the provider's capabilities and its parts of sessions."""

    def __init__(self, store: object, limits: StoreLimits, timeout_s: float) -> None:
        super().__init__(store, timeout_s)
        self.capabilities = capabilities_of(store)
        self.has_snapshots = (
            self.capabilities.snapshots and self.capabilities.revisions and self.capabilities.rich_artifacts
        )
        self.limits = limits

    def has_revisions(self, key: Key) -> bool:
        """Return whether the store numbers this key's revisions; otherwise the number is derived from the content."""
        return self.capabilities.rich_artifacts if isinstance(key, ArtifactKey) else self.capabilities.revisions

    # Reading

    async def read(self, key: Key, hint: Change | None = None) -> Text | None:
        """Return the newest text, or None if it was never written."""
        try:
            if isinstance(key, ArtifactKey):
                return await self._read_artifact(key, hint)
            return await self.read_revision(key, None)
        except MemoError as error:  # a store has no reason to refuse a plain read
            raise unusable(f"read {name_of(key)}", str(error).removeprefix("cannot ")) from error

    async def read_revision(self, key: DocumentKey, revision: int | None) -> Text | None:
        what = f"read {key.name}"
        if not self.capabilities.revisions:
            content = await self.call(what, "read_memory_document", *_plain(key))
            return None if content is None else Text.of(self._encoded(what, content, self.limits.document_bytes))
        document = await self.call(what, "read_document", key, revision)
        return None if document is None else self.checked_document(what, document)

    async def read_artifact(self, key: ArtifactKey) -> Text | None:
        """Return an artifact's newest text, numbered by its content."""
        what = f"read artifact {key.tool_call}"
        content = await self.call(what, "read_tool_result_artifact", str(key.session), str(key.tool_call))
        return None if content is None else Text.of(self._encoded(what, content, self.limits.artifact_bytes))

    def can_batch(self, relative: str) -> bool:
        """Return whether this text can be read together with others in one call."""
        return self.has_snapshots or (self.capabilities.rich_artifacts and is_artifact(relative))

    async def read_batch(self, keys: Sequence[Key]) -> list[object]:
        """Return the newest text of each key, in one call, unchecked.

        A batch may hold megabytes, so the caller passes each text through `encoded` in a thread.
        """
        what = f"read {len(keys)} texts"
        try:
            if self.has_snapshots:
                answer = await self.call(what, "read_memory", keys)
                if not isinstance(answer, list) or len(answer) != len(keys):
                    raise unusable(what, "it does not have one answer for each key")
                return answer
            artifacts = [key for key in keys if isinstance(key, ArtifactKey)]
            found = await self.call(what, "read_artifacts", artifacts[0].session, [key.tool_call for key in artifacts])
            if not isinstance(found, dict):
                raise unusable(what, f"{type(found).__name__} instead of a dict of texts by id")
            return [found.get(key.tool_call) for key in artifacts]
        except MemoError as error:
            raise unusable(what, str(error).removeprefix("cannot ")) from error

    def encoded(self, key: Key, text: object) -> bytes:
        """Check one text of a batch, and return its bytes."""
        limit_bytes = self.limits.artifact_bytes if isinstance(key, ArtifactKey) else self.limits.document_bytes
        what = f"read {name_of(key)}"
        if not isinstance(text, bytes):
            return self._encoded(what, text, limit_bytes)
        if len(text) > limit_bytes:
            raise unusable(what, f"{len(text)} bytes, and the limit is {limit_bytes}")
        try:
            text.decode()
        except UnicodeDecodeError:
            raise unusable(what, "the text is not UTF-8") from None
        return text

    def checked_document(self, what: str, document: object, given: Content | None = None) -> Text:
        """Check a document that the store returned. The text that was `given` to it is not encoded and hashed again."""
        if not isinstance(document, Document) or not isinstance(document.revision, int) or document.revision < 1:
            raise unusable(what, "it is not a document")
        if given is not None and (document.sha256, document.content) == (given.sha256, given.text):
            return given.at(document.revision)
        text = Text.of(self._encoded(what, document.content, self.limits.document_bytes), document.revision)
        if text.sha256 != document.sha256:
            raise unusable(what, "the text does not match the hash that came with it")
        return text

    async def _read_artifact(self, key: ArtifactKey, hint: Change | None) -> Text | None:
        if not self.capabilities.read_artifacts:
            return None
        text = await self.read_artifact(key)
        if text is None or not self.capabilities.rich_artifacts:
            return text
        if hint is not None and hint.sha256 == text.sha256:
            return Text(text.encoded, text.sha256, hint.revision)
        for item in await self.list_artifacts(key.session):
            if item.key == key and item.sha256 == text.sha256:
                return Text(text.encoded, text.sha256, item.revision or 0)
        # It changed between the two calls. Revision 0 never wins, and the change itself will be announced.
        return Text(text.encoded, text.sha256, 0)

    def _encoded(self, what: str, content: object, limit_bytes: int) -> bytes:
        try:
            return encode_text("text", content, limit_bytes)
        except (TooLarge, InvalidContent) as error:
            raise unusable(what, str(error).removeprefix("cannot ")) from None

    # Listing

    async def list_files(self, ref: SessionRef, user: UserId) -> list[Line]:
        """Return a line for every file that the session's mirror must show."""
        if not self.has_snapshots:
            return [self._line_of(item) for item in await self.list_session(ref, user)]
        what = "list the session's memory"
        try:
            listed = await self.call(what, "list_memory", ref, user)
            if not isinstance(listed, SessionMemory):
                raise ValueError("it is not a list of a session's memory")
            documents, artifacts = listed
            listing.check_list(artifacts, listing.MOST_ARTIFACTS)
            listing.check_list(documents, listing.MOST_DOCUMENTS)
            listing.check_documents([e for e in documents if not _is_of_user(e)], DocumentKey.of_session(ref, NOTES))
            listing.check_documents(
                [e for e in documents if _is_of_user(e)], DocumentKey.of_user(ref.tenant, user, USER)
            )
            lines: list[Line] = [(relative_of(e.key), e.revision, e.sha256, e.size_bytes) for e in documents]
            if len(artifacts) < _CHECKED_INLINE:
                return lines + _checked_lines(artifacts)
            return lines + await to_thread.run_sync(_checked_lines, artifacts)
        except (MemoError, ValueError) as error:
            raise unusable(what, str(error).removeprefix("cannot ")) from error

    async def list_session(self, ref: SessionRef, user: UserId) -> list[Item]:
        """Return everything that the session's mirror shows: documents first, then artifacts."""
        try:
            listed: list[Item] = []
            listed += await self.list_documents(ref.tenant, OwnerId(ref.session), Scope.SESSION)
            listed += await self.list_documents(ref.tenant, OwnerId(user), Scope.USER)
            listed += await self.list_artifacts(ref)
            return listed
        except MemoError as error:
            raise unusable("list the session's memory", str(error).removeprefix("cannot ")) from error

    async def list_documents(self, tenant: TenantId, owner: OwnerId, scope: Scope) -> list[Listed]:
        """Return an owner's documents; for a provider that cannot list, those with well-known names."""
        if not self.capabilities.list_documents:
            names = (NOTES, TODO) if scope is Scope.SESSION else (USER,)
            return [Listed(DocumentKey(tenant, owner, scope, name)) for name in names]
        return [
            Listed(entry.key, entry.revision, entry.sha256, entry.size_bytes, entry.updated_at)
            for entry in await self.list_entries(tenant, owner, scope)
        ]

    async def list_entries(self, tenant: TenantId, owner: OwnerId, scope: Scope) -> list[DocumentEntry]:
        what = f"list the documents of this {scope}"
        entries = await self.call(what, "list_documents", tenant, owner, scope)
        try:
            listing.check_list(entries, listing.MOST_DOCUMENTS)
            listing.check_documents(entries, DocumentKey(tenant, owner, scope, NOTES))
        except ValueError as error:
            raise unusable(what, str(error)) from None
        return list(entries)

    async def list_artifacts(self, ref: SessionRef) -> Sequence[Item]:
        what = "list the session's artifacts"
        try:
            if self.capabilities.rich_artifacts:
                entries = await self.call(what, "list_artifacts", ref)
                listing.check_list(entries, listing.MOST_ARTIFACTS)
                listing.check_artifacts(entries, ref)
                return entries  # type: ignore[no-any-return]  # each of them was checked
            if self.capabilities.list_artifacts and self.capabilities.read_artifacts:
                calls = await self.call(what, "list_tool_result_artifact_ids", str(ref))
                listing.check_list(calls, listing.MOST_ARTIFACTS)
                keys = [ArtifactKey(ref, ToolCallId(call)) for call in calls]
                listing.check_unique(keys)
                return [Listed(key) for key in keys]
            return []
        except InvalidKey as error:
            raise unusable(what, f"it lists an illegal id ({error})") from error
        except ValueError as error:
            raise unusable(what, str(error)) from None

    def _line_of(self, item: Item) -> Line:
        key, revision, sha256, size_bytes, _ = item
        if sha256 is not None and not self.has_revisions(key):
            revision = number_of(sha256)
        return relative_of(key), revision, sha256, size_bytes

    # Writing: a store with revisions compares and swaps by itself. For a plain provider the caller holds the key's
    # lock, and the number derived from the content is compared here.

    def check_writable(self, key: Key, *, appends: bool = False) -> None:
        """Raise Unsupported if the store can never accept this write."""
        can = self.capabilities
        if isinstance(key, ArtifactKey):
            is_writable = can.write_artifacts
        else:
            is_writable = can.revisions or can.write or (appends and can.append)
        if not is_writable:
            raise Unsupported(f"cannot write {name_of(key)}: this store is read-only")

    async def write(self, key: DocumentKey, content: Content, expected: Expected, author: Author) -> Text:
        """Write a document if it is still at `expected`, else raise RevisionConflict with the current one."""
        what = f"write {key.name}"
        if self.capabilities.revisions:
            written = await self.call(
                what, "write_document", key, content.text, expected=expected, author=author, writes=True
            )
            return self.checked_document(what, written, content)
        if expected is not ANY:
            current = await self.read(key)
            if not is_expected(None if current is None else current.revision, expected):
                raise conflict(key, expected, None if current is None else current.document())
        await self.call(what, "write_memory_document", *_plain(key), content.text, writes=True)
        return await self._as_kept(key, content.at())

    async def find_request(self, key: DocumentKey, author: Author) -> Text | None:
        """Return what this author's request already committed, or None. Only for stores with revisions."""
        what = f"look for an earlier write of {key.name}"
        try:
            if self.has("find_request"):
                found = await self.call(what, "find_request", key, author.request)
            else:
                # A store looks the request up before it compares revisions, so this finds it or changes nothing.
                found = await self.call(what, "write_document", key, "", expected=_NEVER, author=author, writes=True)
        except RevisionConflict:
            return None
        return None if found is None else self.checked_document(what, found)

    async def append(self, key: DocumentKey, content: Content, author: Author) -> Text:
        what = f"append to {key.name}"
        if self.capabilities.revisions:
            appended = await self.call(what, "append_document", key, content.text, author=author, writes=True)
            return self.checked_document(what, appended)
        before = await self.read(key)
        text = Text.of((b"" if before is None else before.encoded) + content.encoded)
        if self.capabilities.append:
            await self.call(what, "append_memory_document", *_plain(key), content.text, writes=True)
        else:
            await self.call(what, "write_memory_document", *_plain(key), text.encoded.decode(), writes=True)
        return await self._as_kept(key, text)

    def check_removable(self, key: DocumentKey, verb: str) -> None:
        """Raise Unsupported if the store cannot `delete` or `move` documents."""
        can = self.capabilities
        if not (can.revisions and (can.delete_documents if verb == "delete" else can.move_documents)):
            raise Unsupported(f"cannot {verb} {key.name}: this store cannot {verb} documents")

    async def delete(self, key: DocumentKey, expected: Expected, author: Author) -> Revision:
        what = f"delete {key.name}"
        deletion = await self.call(what, "delete_document", key, expected=expected, author=author, writes=True)
        return _checked_deletion(what, deletion)

    async def move(self, key: DocumentKey, to: DocumentName, expected: Expected, author: Author) -> MovedDocument:
        what = f"move {key.name}"
        moved = await self.call(what, "move_document", key, to, expected=expected, author=author, writes=True)
        if not isinstance(moved, MovedDocument):
            raise unusable(what, "it is not a move")
        self.checked_document(what, moved.document)
        return MovedDocument(_checked_deletion(what, moved.deletion), moved.document)

    async def was_deleted(self, key: DocumentKey) -> bool:
        """Return whether the store does not list the document, which has no text: then it was not lost."""
        if not self.capabilities.delete_documents:
            return False
        entries = await self.list_entries(key.tenant, key.owner, key.scope)
        return all(entry.key != key for entry in entries)

    async def restore(self, key: DocumentKey, revision: int, author: Author) -> Text:
        what = f"restore revision {revision} of {key.name}"
        restored = await self.call(what, "restore_document", key, revision, author=author, writes=True)
        return self.checked_document(what, restored)

    async def compact(
        self, ref: SessionRef, summarize: Summarize, options: CompactionOptions, summariser_s: float
    ) -> bool:
        """Compact a session's log, with the options in the form that the store takes."""
        what, verb = "compact the session", "compact_if_needed"
        form = compaction_arguments(getattr(self.store, verb, _no_method), options)
        args = (str(ref.tenant), str(ref.session), awaitable(summarize), *form.args)
        return bool(await self.call(what, verb, *args, writes=True, more_s=summariser_s, **form.kwargs))

    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        """Commit a consolidation run. Every error is memo's own, because the run keeps its reason in the ledger."""
        what = f"settle the consolidation of user {lease.user.user}"
        try:
            document: Document | None = await self.call(what, "settle", lease, settlement, writes=True)
            if settlement.document is not None:
                self.checked_document(what, document)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, ProviderError):
                raise error.__cause__ from None
            kind = Timeout if isinstance(error, WriteOutcomeUnknown) else Unavailable
            raise kind(str(error)) from error
        return document

    async def write_artifact(self, key: ArtifactKey, content: Content, based_on: str | None = None) -> Text:
        """Write an artifact. With `based_on`, only if the store still has the text with that hash, or this one.

        Stores do not compare artifacts, so the caller holds the artifact's lock.
        """
        what = f"write artifact {key.tool_call}"
        if based_on is not None and self.capabilities.read_artifacts:
            current = await self.read_artifact(key)
            now = "" if current is None else current.sha256
            if now not in (based_on, content.sha256):
                raise WriteConflict(
                    f"cannot {what}: the store's text differs from what the mirror showed",
                    None if current is None else current.document(),
                )
        if not self.capabilities.rich_artifacts:
            await self.call(
                what, "write_tool_result_artifact", str(key.session), str(key.tool_call), content.text, writes=True
            )
            return content.at()
        entry = await self.call(what, "write_artifact", key, content.text, writes=True)
        if not isinstance(entry, ArtifactEntry) or entry.sha256 != content.sha256:
            raise unusable(what, "it describes another text")
        return content.at(entry.revision)

    async def _as_kept(self, key: DocumentKey, written: Text) -> Text:
        """Return the text as the provider stored it: a provider may normalise texts, and later reads are compared."""
        try:
            return await self.read(key) or written
        except StoreUnavailable:
            return written  # the write itself was accepted


def _no_method() -> None:
    """Stand in for a method that the store lacks, which `call` reports."""


def name_of(key: Key) -> str:
    return f"artifact {key.tool_call}" if isinstance(key, ArtifactKey) else key.name


def _checked_deletion(what: str, deletion: object) -> Revision:
    if not isinstance(deletion, Revision) or not isinstance(deletion.revision, int) or not deletion.deleted:
        raise unusable(what, "it is not a deletion")
    return deletion


def _is_of_user(entry: object) -> bool:
    key = getattr(entry, "key", None)
    return isinstance(key, DocumentKey) and key.scope is Scope.USER


def _checked_lines(artifacts: list[ArtifactLine]) -> list[Line]:
    listing.check_lines(artifacts)
    return lines_of(artifacts)


def _plain(key: DocumentKey) -> tuple[str, str, str, str]:
    return str(key.tenant), str(key.owner), str(key.scope), str(key.name)
