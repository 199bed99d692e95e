"""Document calls, which read and write memory; and the memory of a `Sandbox`.

Documents belong to a session, or with `scope="user"` to a user: `owner` is the id of that session or user. A name is a
path of up to eight segments, such as `memories/projects/x.md`.
"""

from __future__ import annotations

from urllib.parse import quote

from memo.documents import DocumentName
from sandboxd.client._async.calls import AsyncCalls, AsyncSandboxPart
from sandboxd.client.errors import malformed_answers
from sandboxd.client.request import (
    STORE_S,
    Scope,
    author_headers,
    json_request,
    owner_path,
    text_request,
    with_query,
)
from sandboxd.errors import InvalidRequest
from sandboxd.models.document import (
    Deletion,
    Document,
    DocumentInfo,
    DocumentList,
    History,
    Moved,
    Revision,
    Written,
)

ListedDocuments = list[DocumentInfo]  # in a class with a method `list`, that name is the method
ListedRevisions = list[Revision]

MARKDOWN = "text/markdown; charset=utf-8"


class AsyncDocumentCalls(AsyncCalls):
    def _memo_path(self, owner: str, name: str, scope: Scope, tenant: str | None) -> str:
        return f"{owner_path(tenant or self.tenant, owner, scope)}/memo/{quote(DocumentName(name))}"

    async def list_memo(
        self, owner: str, *, scope: Scope = "session", prefix: str | None = None, tenant: str | None = None
    ) -> list[DocumentInfo]:
        """Return the documents by name, or only those whose names start with the prefix."""
        target = with_query(f"{owner_path(tenant or self.tenant, owner, scope)}/memo", prefix=prefix)
        return (await self._ask(DocumentList, json_request("GET", target))).items

    async def read_memo(
        self,
        owner: str,
        name: str,
        *,
        scope: Scope = "session",
        revision: int | None = None,
        tenant: str | None = None,
    ) -> Document:
        """Return the newest or the given revision; raise `memo.errors.Absent` if there is no document."""
        target = with_query(self._memo_path(owner, name, scope, tenant), revision=revision)
        answer = await self._send(json_request("GET", target))
        with malformed_answers():
            return Document(text=answer.body.decode(), revision=int((answer.headers.get("etag") or '"0"').strip('"')))

    async def write_memo(
        self,
        owner: str,
        name: str,
        text: str,
        *,
        scope: Scope = "session",
        expected: int | None = None,
        merge: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Written:
        """Write if the revision is still `expected` (0: absent); else raise `RevisionConflict` with the newer text."""
        target = with_query(self._memo_path(owner, name, scope, tenant), merge="true" if merge else None)
        headers = author_headers(actor, reason, idempotency_key)
        if expected == 0:
            headers["if-none-match"] = "*"
        elif expected is not None:
            headers["if-match"] = f'"{expected}"'
        return await self._ask(Written, text_request("PUT", target, text, MARKDOWN, headers))

    async def append_memo(
        self,
        owner: str,
        name: str,
        text: str,
        *,
        scope: Scope = "session",
        actor: str | None = None,
        reason: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Written:
        target = self._memo_path(owner, name, scope, tenant)
        headers = author_headers(actor, reason, idempotency_key)
        return await self._ask(Written, text_request("POST", target, text, MARKDOWN, headers))

    async def delete_memo(
        self,
        owner: str,
        name: str,
        *,
        scope: Scope = "session",
        expected: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Deletion:
        """Delete, if the revision is still `expected`. Its history stays, and `restore_memo` brings it back."""
        target = self._memo_path(owner, name, scope, tenant)
        headers = _conditional(author_headers(actor, reason, idempotency_key), expected)
        return await self._ask(Deletion, json_request("DELETE", target, headers=headers, timeout_s=STORE_S))

    async def move_memo(
        self,
        owner: str,
        name: str,
        new_name: str,
        *,
        scope: Scope = "session",
        expected: int | None = None,
        actor: str | None = None,
        reason: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Moved:
        """Rename, if the revision is still `expected`; raise `memo.errors.NameTaken` if the new name exists."""
        target = f"{owner_path(tenant or self.tenant, owner, scope)}/memo-move"
        body = {"from": DocumentName(name), "to": DocumentName(new_name)}
        headers = _conditional(author_headers(actor, reason, idempotency_key), expected)
        return await self._ask(Moved, json_request("POST", target, body, headers=headers, timeout_s=STORE_S))

    async def memo_history(
        self,
        owner: str,
        name: str,
        *,
        scope: Scope = "session",
        limit: int | None = None,
        tenant: str | None = None,
    ) -> list[Revision]:
        """Return the metadata of every revision, newest first."""
        target = with_query(f"{self._memo_path(owner, name, scope, tenant)}/history", limit=limit)
        return (await self._ask(History, json_request("GET", target))).items

    async def diff_memo(
        self,
        owner: str,
        name: str,
        *,
        before: int | None = None,
        after: int | None = None,
        scope: Scope = "session",
        tenant: str | None = None,
    ) -> str:
        """Return the unified diff between two revisions: by default the newest and the one before it."""
        path = f"{self._memo_path(owner, name, scope, tenant)}/diff"
        return await self._ask_text(json_request("GET", with_query(path, **{"from": before, "to": after})))

    async def restore_memo(
        self,
        owner: str,
        name: str,
        revision: int,
        *,
        scope: Scope = "session",
        actor: str | None = None,
        reason: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Written:
        target = f"{self._memo_path(owner, name, scope, tenant)}/restore"
        headers = author_headers(actor, reason, idempotency_key)
        request = json_request("POST", target, {"revision": revision}, headers=headers, timeout_s=STORE_S)
        return await self._ask(Written, request)


def _conditional(headers: dict[str, str], expected: int | None) -> dict[str, str]:
    return headers if expected is None else {**headers, "if-match": f'"{expected}"'}


class AsyncSandboxMemo(AsyncSandboxPart[AsyncDocumentCalls]):
    """The memory of a sandbox: the documents of its session, or with `scope="user"` of its user."""

    def __init__(self, calls: AsyncDocumentCalls, session: str, tenant: str, user: str) -> None:
        super().__init__(calls, session, tenant)
        self._user = user

    def _owner(self, scope: Scope) -> str:
        return self._user if scope == "user" else self._session

    async def list(self, *, prefix: str | None = None, scope: Scope = "session") -> ListedDocuments:
        """Return the documents by name, or only those whose names start with the prefix."""
        return await self._calls.list_memo(self._owner(scope), scope=scope, prefix=prefix, tenant=self._tenant)

    async def read(self, name: str, *, revision: int | None = None, scope: Scope = "session") -> Document:
        """Return the newest or the given revision; raise `memo.errors.Absent` if there is no document."""
        return await self._calls.read_memo(
            self._owner(scope), name, revision=revision, scope=scope, tenant=self._tenant
        )

    async def write(
        self,
        name: str,
        text: str,
        *,
        expected: int | None = None,
        merge: bool = False,
        reason: str | None = None,
        scope: Scope = "session",
    ) -> Written:
        """Write if the revision is still `expected` (0: absent); else raise `RevisionConflict` with the newer text."""
        return await self._calls.write_memo(
            self._owner(scope),
            name,
            text,
            expected=expected,
            merge=merge,
            reason=reason,
            scope=scope,
            tenant=self._tenant,
        )

    async def append(self, name: str, text: str, *, reason: str | None = None, scope: Scope = "session") -> Written:
        return await self._calls.append_memo(
            self._owner(scope), name, text, reason=reason, scope=scope, tenant=self._tenant
        )

    async def delete(
        self, name: str, *, expected: int | None = None, reason: str | None = None, scope: Scope = "session"
    ) -> Deletion:
        """Delete, if the revision is still `expected`. Its history stays, and `restore` brings it back."""
        return await self._calls.delete_memo(
            self._owner(scope), name, expected=expected, reason=reason, scope=scope, tenant=self._tenant
        )

    async def move(
        self,
        name: str,
        new_name: str,
        *,
        expected: int | None = None,
        reason: str | None = None,
        scope: Scope = "session",
    ) -> Moved:
        """Rename, if the revision is still `expected`; raise `memo.errors.NameTaken` if the new name exists."""
        return await self._calls.move_memo(
            self._owner(scope), name, new_name, expected=expected, reason=reason, scope=scope, tenant=self._tenant
        )

    async def edit(
        self,
        name: str,
        old: str,
        new: str,
        *,
        replace_all: bool = False,
        reason: str | None = None,
        scope: Scope = "session",
    ) -> Written:
        """Replace a text that occurs once, or everywhere with `replace_all`.

        A change by another writer in the meantime is merged, or raises `RevisionConflict` if it touches the same lines.
        """
        document = await self.read(name, scope=scope)
        found = document.text.count(old) if old else 0
        if not found or (found > 1 and not replace_all):
            advice = (
                "make the old text longer so that it matches once, or set replace_all" if found else "read it again"
            )
            raise InvalidRequest(f"cannot edit {name}: found {found} matches of the old text; {advice}")
        return await self.write(
            name,
            document.text.replace(old, new),
            expected=document.revision,
            merge=True,
            reason=reason,
            scope=scope,
        )

    async def history(self, name: str, *, limit: int | None = None, scope: Scope = "session") -> ListedRevisions:
        """Return the metadata of every revision, newest first."""
        return await self._calls.memo_history(self._owner(scope), name, limit=limit, scope=scope, tenant=self._tenant)

    async def diff(
        self, name: str, *, before: int | None = None, after: int | None = None, scope: Scope = "session"
    ) -> str:
        """Return the unified diff between two revisions: by default the newest and the one before it."""
        return await self._calls.diff_memo(
            self._owner(scope), name, before=before, after=after, scope=scope, tenant=self._tenant
        )

    async def restore(
        self, name: str, revision: int, *, reason: str | None = None, scope: Scope = "session"
    ) -> Written:
        """Write an old revision again, as a new one."""
        return await self._calls.restore_memo(
            self._owner(scope), name, revision, reason=reason, scope=scope, tenant=self._tenant
        )
