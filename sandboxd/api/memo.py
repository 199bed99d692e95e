"""Documents of a session and of a user: list, read, write with compare-and-swap, append, history, diff, restore.

The same functions serve both; the path says whose document it is. Every write goes through `Memory`, never to the
store directly.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from memo.documents import DocumentKey, DocumentName, Scope
from memo.errors import Absent
from memo.ids import OwnerId, SessionId, SessionRef, TenantId, UserId
from sandboxd.api.budget import allotment
from sandboxd.api.conditions import expectation, read_condition
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
from sandboxd.errors import InvalidRequest
from sandboxd.models.document import (
    DiffQuery,
    DocumentInfo,
    DocumentList,
    History,
    HistoryQuery,
    QueuedWrite,
    ReadQuery,
    RestoreBody,
    Revision,
    ScopeQuery,
    WriteQuery,
    WrittenRevision,
)

MARKDOWN = "text/markdown"


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


def _absent(key: DocumentKey) -> Absent:
    return Absent(f"cannot find {key.name}: it does not exist")


async def list_documents(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    owner = await _owner(services, request, read_query(request, ScopeQuery))
    found = await memory.list(owner.tenant, owner.owner, owner.scope)
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
        raise _absent(key)
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
    expected = await expectation(condition, memory, key)
    request.scope[BEGUN] = True
    return written(await memory.write(key, text, expected=expected, author=author, merge=query.merge))


async def append_document(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    key, session = await _key(services, request, read_query(request, ScopeQuery))
    text = await read_text(request, "document", services.store_limits.document_bytes)
    author = author_of(request, "append", text, session)
    request.scope[BEGUN] = True
    return written(await memory.append(key, text, author=author))


async def list_history(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    query = read_query(request, HistoryQuery)
    key, _ = await _key(services, request, query)
    revisions = await memory.history(key, query.limit)
    if not revisions:
        raise _absent(key)
    return await list_answer(map(Revision.of, revisions), allotment(request))


async def diff_document(services: Services, request: Request) -> Response:
    memory = memory_of(services)
    query = read_query(request, DiffQuery)
    key, _ = await _key(services, request, query)
    after = query.after
    if after is None:
        newest = await memory.read(key)
        if newest is None:
            raise _absent(key)
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
    return (
        Endpoint(
            "GET",
            memo,
            list_documents,
            "memo",
            Access.READ,
            f"List the documents of the {whose}",
            query=ScopeQuery,
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
    )


ENDPOINTS = (*_endpoints(SESSION, "session", ""), *_endpoints(USER, "user", "_user"))
