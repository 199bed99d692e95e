"""Files of the workspace, as raw bytes, streamed in both directions.

The daemon only passes the bytes on; it never opens a path that a container can write.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from memo.ids import SessionRef
from sandboxd.api import render
from sandboxd.api.budget import STREAM_BYTES, allotment
from sandboxd.api.models import FileAnswer, FileQuery, ReadableFileQuery
from sandboxd.api.once import BEGUN
from sandboxd.api.requests import chunks, declared_size, read_query, session_ref
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.streams import Head, Source, Streamed
from sandboxd.errors import ReadOnly
from sandboxd.runner.calls import MAX_FILE_BYTES
from sandboxd.tools.context import MEMO, SKILLS, is_under


async def read_file(services: Services, request: Request) -> Response:
    query = read_query(request, ReadableFileQuery)
    allotment(request).take(STREAM_BYTES)
    return Streamed(_content(services, session_ref(request), query.path), services.watch)


async def _content(services: Services, ref: SessionRef, path: str) -> Source:
    with services.manager.call(ref) as runner:
        async with runner.read_file(path) as reader:
            size = reader.stat.size_bytes
            yield Head("application/octet-stream", headers={"content-length": str(size)})
            async for piece in reader:
                # A file that grows while it is sent is cut at the size it had when opened; one that shrinks breaks the
                # connection, because content-length has been sent.
                yield piece[:size]
                size -= len(piece)
                if size <= 0:
                    return


async def write_file(services: Services, request: Request) -> Response:
    query = read_query(request, FileQuery)
    if is_under(query.path, MEMO) or is_under(query.path, SKILLS):
        raise ReadOnly(f"cannot write {query.path}: it is read-only; write documents with PUT .../memo/NAME")
    allotment(request).take(STREAM_BYTES)
    with services.manager.call(session_ref(request)) as runner:
        request.scope[BEGUN] = True
        body = chunks(request, MAX_FILE_BYTES)
        stat = await runner.write_file(query.path, body, size_bytes=declared_size(request))
    return render.json_answer(render.file_stat(stat))


_FILES = f"{SESSION}/files"

ENDPOINTS = (
    Endpoint(
        "GET",
        _FILES,
        read_file,
        "file",
        Access.READ,
        "Return the bytes of a file",
        query=ReadableFileQuery,
        answers={200: "application/octet-stream"},
    ),
    Endpoint(
        "PUT",
        _FILES,
        write_file,
        "file",
        Access.WRITE,
        "Write a file; readers see the old file until the new one is complete",
        body_limit=MAX_FILE_BYTES,
        body="application/octet-stream",
        query=FileQuery,
        answers={200: FileAnswer},
    ),
)
