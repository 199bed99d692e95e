"""Documents of a session and of a user: list, read, write, append, delete, move, history, diff, restore.

The same functions serve both; the path says whose document it is. A name may contain slashes, so the routes about a
document come before those of the document itself. Every write goes through `Memory`, never to the store directly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from memo.documents import ABSENT, DocumentKey, DocumentName, Scope, absent_error
from memo.errors import Absent, RevisionConflict
from memo.ids import OwnerId, SessionId, SessionRef, TenantId, UserId
from sandboxd.api.answers import json_answer
from sandboxd.api.budget import allotment
from sandboxd.api.conditions import Condition, expectation, read_condition
from sandboxd.api.contracts import Memory
from sandboxd.api.memory import (
    AUTHOR_HEADERS,
    MAX_TEXT_BYTES,
    author_of,
    memory_of,
    read_text,
    remembers_requests,
    require_session,
    text_answer,
    user_of,
    written,
)
from sandboxd.api.once import BEGUN
from sandboxd.api.pieces import list_answer
from sandboxd.api.requests import MAX_JSON_BYTES, read_json, read_query, session_ref
from sandboxd.api.routes import SESSION, USER, Access, Endpoint, Services
from sandboxd.errors import Busy, InvalidRequest
from sandboxd.models.document import (
    Deletion,
    DiffQuery,
    DocumentInfo,
    DocumentList,
    DocumentMove,
    History,
    HistoryQuery,
    ListQuery,
    Moved,
    QueuedWrite,
    ReadQuery,
    RestoreBody,
    Revision,
    ScopeQuery,
    WriteQuery,
    WrittenRevision,
)

MARKDOWN = "text/markdown"
_MOST_TRIES = 10


@dataclass(frozen=True, slots=True)
class DocumentOwner:
    """The owner of the documents that a request names, and the session it came through."""

    tenant: TenantId
    owner: OwnerId
    scope: Scope
    session: SessionId | None


async def _owner(services: Services, request: Request, query: ScopeQuery) -> DocumentOwner:
    params = request.scope["path_params"]
    if "user" in params:
        if query.scope != "session":
            raise InvalidRequest("cannot use scope here: the path already names the owner; leave scope out")
        return DocumentOwner(TenantId(params["tenant"]), OwnerId(UserId(params["user"])), Scope.USER, None)
    ref = session_ref(request)
    if query.scope == "user":
        return DocumentOwner(ref.tenant, OwnerId(await user_of(services, ref)), Scope.USER, ref.session)
    return DocumentOwner(ref.tenant, OwnerId(ref.session), Scope.SESSION, ref.session)


async def _key(services: Services, request: Request, query: ScopeQuery) -> tuple[DocumentKey, SessionId | None]:
    name = DocumentName(request.scope["path_params"]["name"])
    owner = await _owner(services, request, query)
    return DocumentKey(owner.tenant, owner.owner, owner.scope, name), owner.session


async def _absent(memory: Memory, key: DocumentKey) -> Absent:
    return absent_error("find", key.name, await memory.deletion(key))


async def list_documents(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    query = read_query(request, ListQuery)
    owner = await _owner(services, request, query)
    found = await memory.list(owner.tenant, owner.owner, owner.scope, query.prefix)
    if not found and owner.scope is Scope.SESSION:
        await require_session(services, session_ref(request))
    return await list_answer(map(DocumentInfo.of, found), allotment(request))


async def read_document(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    query = read_query(request, ReadQuery)
    key, session = await _key(services, request, query)
    document = await memory.read(key, query.revision)
    if document is None:
        if query.revision is not None:
            raise Absent(f"cannot find revision {query.revision} of {key.name}")
        raise await _absent(memory, key)
    if session is not None and query.revision is None:
        memory.agents.saw(SessionRef(key.tenant, session), key, document)
    return text_answer(request, document.content, MARKDOWN, document.revision)


async def write_document(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    query = read_query(request, WriteQuery)
    key, session = await _key(services, request, query)
    condition = read_condition(request)
    text = await read_text(request, "document", services.store_limits.document_bytes)
    author = author_of(request, "put", text, session)
    for _ in range(_MOST_TRIES):
        expected = await expectation(condition, memory, key)
        request.scope[BEGUN] = True
        try:
            return written(await memory.write(key, text, expected=expected, author=author, merge=query.merge))
        except RevisionConflict:
            if not condition.must_exist:  # else it only must exist, at whatever revision
                raise
    raise Busy(f"cannot write {key.name}: others write it all the time; try again")


async def append_document(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    key, session = await _key(services, request, read_query(request, ScopeQuery))
    text = await read_text(request, "document", services.store_limits.document_bytes)
    author = author_of(request, "append", text, session)
    request.scope[BEGUN] = True
    return written(await memory.append(key, text, author=author))


async def delete_document(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    key, session = await _key(services, request, read_query(request, ScopeQuery))
    condition = _of_existing(request)
    author = author_of(request, "delete", str(condition.expected), session)
    request.scope[BEGUN] = True
    deletion = await memory.delete(key, expected=condition.expected, author=author)
    return json_answer(Deletion(name=key.name, revision=deletion.revision))


async def move_document(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    owner = await _owner(services, request, read_query(request, ScopeQuery))
    condition = _of_existing(request)
    body = await read_json(request, DocumentMove)
    source, target = DocumentName(body.source), DocumentName(body.target)
    author = author_of(request, "move", f"{source} {target} {condition.expected}", owner.session)
    key = DocumentKey(owner.tenant, owner.owner, owner.scope, source)
    request.scope[BEGUN] = True
    moved = (await memory.move(key, target, expected=condition.expected, author=author)).document
    answer = json_answer(Moved(name=target, revision=moved.revision, sha256=moved.sha256))
    answer.headers["etag"] = f'"{moved.revision}"'
    return answer


def _of_existing(request: Request) -> Condition:
    """Return the condition of a request that needs a document: If-Match, if any."""
    condition = read_condition(request)
    if condition.expected is ABSENT:
        raise InvalidRequest("cannot use If-None-Match here: the document must exist; send If-Match or neither")
    return condition


async def list_history(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    query = read_query(request, HistoryQuery)
    key, _ = await _key(services, request, query)
    revisions = await memory.history(key, query.limit)
    if not revisions:
        raise await _absent(memory, key)
    return await list_answer(map(Revision.of, revisions), allotment(request))


async def diff_document(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    query = read_query(request, DiffQuery)
    key, _ = await _key(services, request, query)
    after = query.after
    if after is None:
        newest = next(iter(await memory.history(key, 1)), None)
        if newest is None:
            raise await _absent(memory, key)
        after = newest.revision
    before = after - 1 if query.before is None else query.before
    return text_answer(request, await memory.diff(key, before, after), "text/x-diff")


async def restore_document(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    key, session = await _key(services, request, read_query(request, ScopeQuery))
    body = await read_json(request, RestoreBody)
    author = author_of(request, "restore", str(body.revision), session)
    request.scope[BEGUN] = True
    return written(await memory.restore(key, body.revision, author))


def _endpoints(base: str, whose: str, prefix: str) -> tuple[Endpoint, ...]:
    memo = f"{base}/memo"
    document = f"{memo}/{{name}}"
    parts = (
        Endpoint(
            "GET",
            memo,
            list_documents,
            "memo",
            Access.READ,
            f"List the documents of the {whose}",
            query=ListQuery,
            answers={200: DocumentList},
            operation_id=f"list{prefix}_documents",
        ),
        Endpoint(
            "GET",
            document,
            read_document,
            "memo",
            Access.READ,
            "Return the text of a document; its ETag is the revision. 404 `memo.absent` if it was never written",
            query=ReadQuery,
            answers={200: MARKDOWN},
            operation_id=f"read{prefix}_document",
        ),
        Endpoint(
            "PUT",
            document,
            write_document,
            "memo",
            Access.WRITE,
            "Write a document. With If-Match (or If-None-Match: *), only if it is still that revision (or was never "
            "written): else 412 `memo.conflict` with `revision` and `text` as they are now",
            body_limit=MAX_TEXT_BYTES,
            body=MARKDOWN,
            query=WriteQuery,
            answers={200: WrittenRevision, 202: QueuedWrite},
            headers=("If-Match", "If-None-Match", *AUTHOR_HEADERS),
            operation_id=f"write{prefix}_document",
        ),
        Endpoint(
            "POST",
            document,
            append_document,
            "memo",
            Access.WRITE,
            "Append to a document",
            body_limit=MAX_TEXT_BYTES,
            body=MARKDOWN,
            query=ScopeQuery,
            answers={200: WrittenRevision, 202: QueuedWrite},
            repeatable=remembers_requests,
            headers=AUTHOR_HEADERS,
            operation_id=f"append{prefix}_document",
        ),
        Endpoint(
            "GET",
            f"{document}/history",
            list_history,
            "memo",
            Access.READ,
            "List the revisions of a document, newest first",
            query=HistoryQuery,
            answers={200: History},
            operation_id=f"list{prefix}_history",
        ),
        Endpoint(
            "GET",
            f"{document}/diff",
            diff_document,
            "memo",
            Access.READ,
            "Return the unified diff between two revisions",
            query=DiffQuery,
            answers={200: "text/x-diff"},
            operation_id=f"diff{prefix}_document",
        ),
        Endpoint(
            "POST",
            f"{document}/restore",
            restore_document,
            "memo",
            Access.WRITE,
            "Write the text of an old revision as a new one",
            body_limit=MAX_JSON_BYTES,
            body=RestoreBody,
            query=ScopeQuery,
            answers={200: WrittenRevision, 202: QueuedWrite},
            repeatable=remembers_requests,
            headers=AUTHOR_HEADERS,
            operation_id=f"restore{prefix}_document",
        ),
        Endpoint(
            "DELETE",
            document,
            delete_document,
            "memo",
            Access.WRITE,
            "Delete a document, as a revision: its history stays, and an earlier revision can be restored. With "
            "If-Match, only if it is still that revision: else 412 `memo.conflict`",
            query=ScopeQuery,
            answers={200: Deletion},
            repeatable=remembers_requests,
            headers=("If-Match", *AUTHOR_HEADERS),
            operation_id=f"delete{prefix}_document",
        ),
        Endpoint(
            "POST",
            f"{base}/memo-move",
            move_document,
            "memo",
            Access.WRITE,
            "Rename a document. Its history stays under the old name. 409 `memo.name_taken` if the new name exists",
            body_limit=MAX_JSON_BYTES,
            body=DocumentMove,
            query=ScopeQuery,
            answers={200: Moved},
            repeatable=remembers_requests,
            headers=("If-Match", *AUTHOR_HEADERS),
            operation_id=f"move{prefix}_document",
        ),
    )
    deep = [replace(part, deep_parameter="name") for part in parts if part.path.startswith(f"{memo}/")]
    # A name may contain slashes, so the longer paths are tried first.
    deep.sort(key=lambda part: part.path == document)
    return (*(part for part in parts if not part.path.startswith(f"{memo}/")), *deep)


ENDPOINTS = (*_endpoints(SESSION, "session", ""), *_endpoints(USER, "user", "_user"))
