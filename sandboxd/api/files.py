"""Files of the sandbox: their bytes, streamed in both directions, and directories, names and metadata.

The daemon only passes requests on to the runner; it never opens a path that a container can write.
"""

from __future__ import annotations

from email.utils import format_datetime

import anyio
from starlette.requests import Request
from starlette.responses import Response

from memo.ids import SessionRef
from sandboxd.api.answers import json_answer
from sandboxd.api.budget import MIB, STREAM_BYTES, allotment
from sandboxd.api.byte_range import ByteRange
from sandboxd.api.once import BEGUN, REPEATED
from sandboxd.api.pieces import list_answer
from sandboxd.api.problems import problem_of
from sandboxd.api.requests import MAX_JSON_BYTES, chunks, declared_size, header, read_json, read_query, session_ref
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.streams import EVENTS_HEAD, KEEP_ALIVE, KEEP_ALIVE_S, Head, Source, Streamed, sse
from sandboxd.errors import FileExists, FileNotFound, RangeNotSatisfiable, ReadOnly, SandboxdError
from sandboxd.models.files import (
    MAX_ARCHIVE_BYTES,
    MAX_FILE_BYTES,
    ArchiveQuery,
    ArchiveSummary,
    DirectoryPage,
    FileHeadQuery,
    FileInfo,
    FileQuery,
    MakeDirectoryBody,
    MoveBody,
    ReadableFileQuery,
    RemovalQuery,
    WatchQuery,
    shown_path,
)
from sandboxd.models.paths import is_under
from sandboxd.runner.inside.container_paths import MEMO, SKILLS

TAR = "application/x-tar"
PAGE_BYTES = 4 * MIB
"""The most memory that a page of a directory takes before it is rendered."""


async def read_file(services: Services, request: Request) -> Response:
    query = read_query(request, ReadableFileQuery)
    if query.list:
        return await _list(services, request, query)
    if query.stat:
        with await services.manager.call(session_ref(request)) as runner:
            return json_answer(await runner.stat(query.path, follow=query.follow))
    allotment(request).take(STREAM_BYTES)
    wanted = None
    if (given := header(request, b"range")) is not None and header(request, b"if-range") is None:
        wanted = ByteRange.parse(given)  # with If-Range, the whole file: it has no validator that could match
    return Streamed(_content(services, session_ref(request), query.path, wanted), services.watch)


async def _content(services: Services, ref: SessionRef, path: str, wanted: ByteRange | None) -> Source:
    with await services.manager.call(ref) as runner:
        offset, length = 0, None
        if wanted is not None:
            size = (await runner.stat(path)).size_bytes if wanted.first is None else 0
            offset, length = min(wanted.offset(size), MAX_FILE_BYTES), wanted.length
        async with runner.read_file(path, offset, length) as reader:
            total = reader.stat.size_bytes
            left = max(0, total - offset) if length is None else max(0, min(length, total - offset))
            if wanted is not None and not left:
                why = f"it has {total} bytes; ask for a range that begins before its end"
                raise RangeNotSatisfiable(f"cannot read this range of {shown_path(path)}: {why}", total)
            headers = {"content-length": str(left), "accept-ranges": "bytes"}
            if wanted is not None:
                headers["content-range"] = f"bytes {offset}-{offset + left - 1}/{total}"
            yield Head("application/octet-stream", 200 if wanted is None else 206, headers)
            async for piece in reader:
                # A file that grows while it is sent is cut at the size it had when opened; one that shrinks breaks the
                # connection, because content-length has been sent.
                yield piece[:left]
                left -= len(piece)
                if left <= 0:
                    return


async def _list(services: Services, request: Request, query: ReadableFileQuery) -> Response:
    memory = allotment(request)
    memory.take(PAGE_BYTES)
    after = (query.after or "").rpartition("/")[2]
    with await services.manager.call(session_ref(request)) as runner, services.watch.guard(request.receive):
        page = await runner.list_directory(query.path, after, query.limit)
    return await list_answer(page.items, memory, next=page.next)


async def stat_file(services: Services, request: Request) -> Response:
    """Answer with headers only: those of a GET for a file, and the type, mode and time of any entry."""
    query = read_query(request, FileHeadQuery)
    with await services.manager.call(session_ref(request)) as runner:
        stat = await runner.stat(query.path, follow=query.follow)
    headers = {"x-file-type": stat.type, "x-file-mode": str(stat.mode)}
    if stat.modified_at is not None:
        headers["last-modified"] = format_datetime(stat.modified_at.replace(microsecond=0), usegmt=True)
    if stat.type == "file":
        headers |= {"content-length": str(stat.size_bytes), "accept-ranges": "bytes"}
    return Response(None, 200, headers, "application/octet-stream")


async def write_file(services: Services, request: Request) -> Response:
    query = read_query(request, FileQuery)
    _refuse_read_only("write", query.path)
    allotment(request).take(STREAM_BYTES)
    with await services.manager.call(session_ref(request)) as runner:
        request.scope[BEGUN] = True
        body = chunks(request, MAX_FILE_BYTES)
        stat = await runner.write_file(query.path, body, size_bytes=declared_size(request))
    return json_answer(stat)


async def remove_file(services: Services, request: Request) -> Response:
    query = read_query(request, RemovalQuery)
    _refuse_read_only("remove", query.path)
    with await services.manager.call(session_ref(request)) as runner, services.watch.guard(request.receive):
        request.scope[BEGUN] = True
        try:
            await runner.remove(query.path, recursive=query.recursive)
        except FileNotFound:
            if not request.scope.get(REPEATED):  # the first request with this key may have removed it
                raise
    return Response(status_code=204)


async def make_directory(services: Services, request: Request) -> Response:
    body = await read_json(request, MakeDirectoryBody)
    _refuse_read_only("make", body.path)
    with await services.manager.call(session_ref(request)) as runner:
        request.scope[BEGUN] = True
        try:
            stat, is_new = await runner.make_directory(body.path, parents=body.parents)
        except FileExists:
            if not request.scope.get(REPEATED):
                raise
            stat, is_new = await runner.stat(body.path, follow=False), True
            if stat.type != "directory":
                raise
    return json_answer(stat, 201 if is_new else 200)


async def move_file(services: Services, request: Request) -> Response:
    body = await read_json(request, MoveBody)
    _refuse_read_only("move", body.source)
    _refuse_read_only("move to", body.target)
    with await services.manager.call(session_ref(request)) as runner:
        request.scope[BEGUN] = True
        stat = await runner.move(body.source, body.target, replace=body.replace)
    return json_answer(stat)


async def read_archive(services: Services, request: Request) -> Response:
    query = read_query(request, ArchiveQuery)
    allotment(request).take(STREAM_BYTES)
    return Streamed(_archive(services, session_ref(request), query.path), services.watch)


async def _archive(services: Services, ref: SessionRef, path: str) -> Source:
    with await services.manager.call(ref) as runner:
        async with runner.read_archive(path) as pieces:
            yield Head(TAR)
            async for piece in pieces:  # an error in the middle breaks the connection
                yield piece


async def write_archive(services: Services, request: Request) -> Response:
    query = read_query(request, FileQuery)
    _refuse_read_only("extract into", query.path)
    allotment(request).take(STREAM_BYTES)
    with await services.manager.call(session_ref(request)) as runner:
        request.scope[BEGUN] = True
        return json_answer(await runner.write_archive(query.path, chunks(request, MAX_ARCHIVE_BYTES)))


async def watch_files(services: Services, request: Request) -> Response:
    query = read_query(request, WatchQuery)
    allotment(request).take(STREAM_BYTES)
    return Streamed(_watch(services, session_ref(request), query), services.watch)


async def _watch(services: Services, ref: SessionRef, query: WatchQuery) -> Source:
    with await services.manager.call(ref) as runner:
        async with runner.watch_directory(query.path, recursive=query.recursive) as watch:
            yield EVENTS_HEAD
            try:
                while True:
                    piece = KEEP_ALIVE
                    with anyio.move_on_after(KEEP_ALIVE_S):
                        events = await watch.batch()
                        if not events:
                            return
                        piece = b"".join([sse(one.event, {"path": one.path, "type": one.type}) for one in events])
                    yield piece
            except SandboxdError as error:
                yield sse("error", problem_of(error))


def _refuse_read_only(action: str, path: str) -> None:
    if is_under(path, MEMO):
        raise ReadOnly(f"cannot {action} {shown_path(path)}: it is read-only; write documents with PUT .../memo/NAME")
    if is_under(path, SKILLS):
        raise ReadOnly(f"cannot {action} {shown_path(path)}: {SKILLS} is read-only; use a path under /workspace")


_FILES = f"{SESSION}/files"

ENDPOINTS = (
    Endpoint(
        "GET",
        _FILES,
        read_file,
        "file",
        Access.READ,
        "Return the bytes of a file, or the `Range` of them; with `stat` its metadata, with `list` a page of a "
        "directory",
        query=ReadableFileQuery,
        answers={200: "application/octet-stream", 206: "application/octet-stream"},
        other_answers=(FileInfo, DirectoryPage),
        headers=("Range",),
    ),
    Endpoint(
        "HEAD",
        _FILES,
        stat_file,
        "file",
        Access.READ,
        "Return the size of a file in Content-Length, and X-File-Type, X-File-Mode and Last-Modified of any path",
        query=FileHeadQuery,
        answers={200: None},
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
        answers={200: FileInfo},
    ),
    Endpoint(
        "DELETE",
        _FILES,
        remove_file,
        "file",
        Access.WRITE,
        "Remove a file, a link or an empty directory; with `recursive` a directory and everything below it",
        query=RemovalQuery,
        answers={204: None},
    ),
    Endpoint(
        "POST",
        f"{_FILES}/mkdir",
        make_directory,
        "file",
        Access.WRITE,
        "Make a directory",
        body_limit=MAX_JSON_BYTES,
        body=MakeDirectoryBody,
        answers={201: FileInfo, 200: FileInfo},
    ),
    Endpoint(
        "POST",
        f"{_FILES}/move",
        move_file,
        "file",
        Access.WRITE,
        "Rename a file, a link or a directory within one filesystem",
        body_limit=MAX_JSON_BYTES,
        body=MoveBody,
        answers={200: FileInfo},
        repeatable=False,
    ),
    Endpoint(
        "GET",
        f"{_FILES}/archive",
        read_archive,
        "file",
        Access.READ,
        "Return a tar of a file, or of a directory with everything below it; /workspace/memo is left out of "
        "/workspace. An error in the middle breaks the connection",
        query=ArchiveQuery,
        answers={200: TAR},
    ),
    Endpoint(
        "PUT",
        f"{_FILES}/archive",
        write_archive,
        "file",
        Access.WRITE,
        "Extract a tar into a directory, which is made if it is missing; an error names the entry, and those before "
        "it stay",
        body_limit=MAX_ARCHIVE_BYTES,
        body=TAR,
        query=FileQuery,
        answers={200: ArchiveSummary},
    ),
    Endpoint(
        "GET",
        f"{_FILES}/watch",
        watch_files,
        "file",
        Access.READ,
        "Stream what happens in a directory: events `ready`, `created`, `changed`, `removed`, `overflow` (events were "
        'lost) with data `{"path": …, "type": …}`, and `error` (a problem)',
        query=WatchQuery,
        answers={200: "text/event-stream"},
    ),
)
