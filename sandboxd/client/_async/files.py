"""File calls; and the files of a `Sandbox`."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from sandboxd.client._async.calls import AsyncCalls, AsyncSandboxPart
from sandboxd.client.errors import malformed_answers, rebuild
from sandboxd.client.request import CREATE_S, GRACE_S, STORE_S, Answer, Request, encode_text, json_request, with_query
from sandboxd.client.sse import EVENT_STREAM
from sandboxd.client.stdin import async_checked, async_pieces_of
from sandboxd.client.streams import AsyncStream
from sandboxd.errors import FileNotFound, InvalidRequest, NotADirectory, RangeNotSatisfiable
from sandboxd.models.files import ArchiveSummary, DirectoryPage, FileEvent, FileInfo

if TYPE_CHECKING:
    from sandboxd.client.host_tree import Copied

ListedFiles = list[FileInfo]  # in a class with a method `list`, that name is the method

REMOVAL_S = 300.0 + GRACE_S
"""The daemon stops the removal of a tree after 300 s."""


class AsyncFileCalls(AsyncCalls):
    def _files_path(self, session: str, tenant: str | None) -> str:
        return f"{self._session_path(session, tenant)}/files"

    async def read_file(
        self, session: str, path: str, *, offset: int = 0, length: int | None = None, tenant: str | None = None
    ) -> bytes:
        """Return a file, or up to `length` bytes of it from an offset; nothing if that is at its end."""
        target = with_query(self._files_path(session, tenant), path=path)
        try:
            content = (await self._send(json_request("GET", target, headers=_range(offset, length)))).body
        except RangeNotSatisfiable:
            return b""
        return content if length is None else content[:length]

    @asynccontextmanager
    async def open_file(
        self, session: str, path: str, *, offset: int = 0, tenant: str | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream a file: `async with client.open_file(...) as pieces:`. An offset must be before its end."""
        target = with_query(self._files_path(session, tenant), path=path)
        async with self._stream(json_request("GET", target, headers=_range(offset, None))) as pieces:
            yield pieces

    async def write_file(
        self,
        session: str,
        path: str,
        content: str | bytes | AsyncIterable[bytes],
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> FileInfo:
        """Replace a file in one step: readers see the old or the new one. `content` may be an iterable of bytes."""
        target = with_query(self._files_path(session, tenant), path=path)
        headers = {"content-type": "application/octet-stream"}
        if idempotency_key is not None:
            headers["idempotency-key"] = idempotency_key
        if not isinstance(content, str | bytes):
            return await self._ask(FileInfo, Request("PUT", target, None, headers, CREATE_S), async_checked(content))
        body = encode_text(content) if isinstance(content, str) else content
        return await self._ask(FileInfo, Request("PUT", target, body, headers, CREATE_S))

    async def list_files(self, session: str, path: str, *, tenant: str | None = None) -> list[FileInfo]:
        """Return the entries of a directory, in the byte order of their names. Links are described, not followed."""
        found: list[FileInfo] = []
        after: str | None = None
        while True:
            target = with_query(self._files_path(session, tenant), path=path, list="true", after=after)
            page = await self._ask(DirectoryPage, json_request("GET", target, timeout_s=CREATE_S))
            found += page.items
            after = page.next
            if after is None:
                return found

    async def stat_file(self, session: str, path: str, *, follow: bool = True, tenant: str | None = None) -> FileInfo:
        """Return what is known about a file, directory or link; without `follow`, about a link itself."""
        follows = None if follow else "false"
        target = with_query(self._files_path(session, tenant), path=path, stat="true", follow=follows)
        return await self._ask(FileInfo, json_request("GET", target))

    async def remove_file(
        self,
        session: str,
        path: str,
        *,
        recursive: bool = False,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Remove a file, a link or an empty directory; with `recursive`, a directory and everything below it."""
        target = with_query(self._files_path(session, tenant), path=path, recursive="true" if recursive else None)
        await self._send(json_request("DELETE", target, key=idempotency_key, timeout_s=REMOVAL_S))

    async def make_directory(
        self,
        session: str,
        path: str,
        *,
        parents: bool = False,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> FileInfo:
        """Make a directory; with `parents`, also make missing parents and accept an existing directory."""
        answer = await self._post_directory(session, path, parents, tenant, idempotency_key)
        with malformed_answers():
            return FileInfo.model_validate_json(answer.body)

    async def _post_directory(
        self, session: str, path: str, parents: bool, tenant: str | None, key: str | None = None
    ) -> Answer:
        target = f"{self._files_path(session, tenant)}/mkdir"
        return await self._send(json_request("POST", target, {"path": path, "parents": parents}, key=key))

    async def move_file(
        self,
        session: str,
        source: str,
        destination: str,
        *,
        replace: bool = False,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> FileInfo:
        """Rename a file, a link or a directory in one step; with `replace`, over an existing one."""
        target = f"{self._files_path(session, tenant)}/move"
        content = {"from": source, "to": destination, "replace": replace}
        return await self._ask(FileInfo, json_request("POST", target, content, key=idempotency_key))

    @asynccontextmanager
    async def open_archive(
        self, session: str, path: str, *, tenant: str | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream a tar of a file or of a directory: `async with client.open_archive(...) as pieces:`"""
        target = with_query(f"{self._files_path(session, tenant)}/archive", path=path)
        async with self._stream(json_request("GET", target, timeout_s=CREATE_S)) as pieces:
            yield pieces

    async def write_archive(
        self,
        session: str,
        path: str,
        pieces: AsyncIterable[bytes],
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> ArchiveSummary:
        """Extract a tar into a directory, which is made if it is missing; an error names the entry that failed."""
        target = with_query(f"{self._files_path(session, tenant)}/archive", path=path)
        headers = {"content-type": "application/x-tar"}
        if idempotency_key is not None:
            headers["idempotency-key"] = idempotency_key
        return await self._ask(ArchiveSummary, Request("PUT", target, None, headers, CREATE_S), async_checked(pieces))

    async def upload(
        self, session: str, host_path: str | PathLike[str], sandbox_path: str, *, tenant: str | None = None
    ) -> Copied:
        """Copy a file, or the contents of a directory, of this host to a path of the sandbox; modes and times are kept.

        Missing directories are made. What exists there and is not copied stays.
        """
        from sandboxd.client.host_tree import TreePacker  # loads tarfile, which most programs do not need

        directory, _, name = sandbox_path.rpartition("/")
        packer = TreePacker(Path(host_path), name)
        place = sandbox_path if packer.is_directory else directory or "/"
        await self.write_archive(session, place, async_pieces_of(packer.pieces()), tenant=tenant)
        return packer.copied

    async def download(
        self, session: str, sandbox_path: str, host_path: str | PathLike[str], *, tenant: str | None = None
    ) -> Copied:
        """Copy a file, or the contents of a directory, of the sandbox to a path of this host; modes and times are kept.

        Links that lead outside the target are left out and named in the result.
        """
        from sandboxd.client.host_tree import async_save_file, async_unpack_tree

        found = await self.stat_file(session, sandbox_path, tenant=tenant)
        target = Path(host_path)
        if found.type == "directory":
            async with self.open_archive(session, sandbox_path, tenant=tenant) as pieces:
                return await async_unpack_tree(pieces, target)
        async with self.open_file(session, sandbox_path, tenant=tenant) as pieces:
            return await async_save_file(pieces, target, found.mode, found.modified_at)

    async def watch_files(
        self, session: str, path: str, *, recursive: bool = False, tenant: str | None = None
    ) -> AsyncStream[FileEvent]:
        """Yield what happens in a directory. After the first event, `ready`, nothing is missed until an `overflow`."""
        query = {"path": path, "recursive": "true" if recursive else None}
        target = with_query(f"{self._files_path(session, tenant)}/watch", **query)
        async with self._events(json_request("GET", target, headers=EVENT_STREAM, timeout_s=STORE_S)) as events:
            async for kind, data in events:
                yield _parse_event(kind, data)


class AsyncSandboxFiles(AsyncSandboxPart[AsyncFileCalls]):
    """The files of a sandbox. A relative path is relative to /workspace."""

    @overload
    async def read(
        self, path: str, format: Literal["text"] = "text", *, offset: int = 0, length: int | None = None
    ) -> str: ...

    @overload
    async def read(
        self, path: str, format: Literal["bytes"], *, offset: int = 0, length: int | None = None
    ) -> bytes: ...

    async def read(
        self, path: str, format: Literal["text", "bytes"] = "text", *, offset: int = 0, length: int | None = None
    ) -> str | bytes:
        """Return a file as text, in which bytes that are not UTF-8 are replaced, or as bytes.

        With `offset` and `length`, which count bytes, only a part of it is read.
        """
        content = await self._calls.read_file(
            self._session, _absolute(path), offset=offset, length=length, tenant=self._tenant
        )
        return content if format == "bytes" else content.decode("utf-8", "replace")

    @asynccontextmanager
    async def open(self, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream a file of any size: `async with sandbox.files.open(...) as pieces:`"""
        async with self._calls.open_file(self._session, _absolute(path), tenant=self._tenant) as pieces:
            yield pieces

    async def write(self, path: str, content: str | bytes | AsyncIterable[bytes]) -> FileInfo:
        """Replace a file in one step, and make missing parent directories; `content` may be an iterable of bytes."""
        return await self._calls.write_file(self._session, _absolute(path), content, tenant=self._tenant)

    async def list(self, path: str = "/workspace") -> ListedFiles:
        """Return the entries of a directory, in the byte order of their names."""
        return await self._calls.list_files(self._session, _absolute(path), tenant=self._tenant)

    async def stat(self, path: str) -> FileInfo:
        """Return what is known about a file or directory; links are followed."""
        return await self._calls.stat_file(self._session, _absolute(path), tenant=self._tenant)

    async def exists(self, path: str) -> bool:
        """Return whether a file or directory exists; a dangling link does not."""
        try:
            await self.stat(path)
        except (FileNotFound, NotADirectory):
            return False
        return True

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, a link or an empty directory; with `recursive`, a directory and everything below it."""
        await self._calls.remove_file(self._session, _absolute(path), recursive=recursive, tenant=self._tenant)

    async def rename(self, old_path: str, new_path: str, *, replace: bool = False) -> FileInfo:
        """Rename a file, a link or a directory in one step; with `replace`, over an existing one."""
        return await self._calls.move_file(
            self._session, _absolute(old_path), _absolute(new_path), replace=replace, tenant=self._tenant
        )

    async def make_dir(self, path: str) -> bool:
        """Make a directory and its missing parents; return False if it already existed."""
        answer = await self._calls._post_directory(self._session, _absolute(path), True, self._tenant)
        return answer.status == 201

    async def upload(self, host_path: str | PathLike[str], sandbox_path: str) -> Copied:
        """Copy a file, or the contents of a directory, of this host into the sandbox; modes and times are kept."""
        return await self._calls.upload(self._session, host_path, _absolute(sandbox_path), tenant=self._tenant)

    async def download(self, sandbox_path: str, host_path: str | PathLike[str]) -> Copied:
        """Copy a file, or the contents of a directory, of the sandbox to this host; modes and times are kept."""
        return await self._calls.download(self._session, _absolute(sandbox_path), host_path, tenant=self._tenant)

    def watch_dir(self, path: str = "/workspace", *, recursive: bool = False) -> AsyncStream[FileEvent]:
        """Yield what happens in a directory; begin to rely on it after the first event, `ready`."""
        return self._calls.watch_files(self._session, _absolute(path), recursive=recursive, tenant=self._tenant)


def _absolute(path: str) -> str:
    return path if path.startswith(("/", "file:///")) else f"/workspace/{path}"


def _range(offset: int, length: int | None) -> dict[str, str]:
    """Return the header that asks for a part of a file; of no bytes at all it cannot, so that asks for one."""
    if offset < 0 or (length is not None and length < 0):
        raise InvalidRequest("cannot read this part of a file: offset and length must not be negative")
    if not offset and length is None:
        return {}
    return {"range": f"bytes={offset}-{'' if length is None else offset + max(1, length) - 1}"}


def _parse_event(kind: str, data: str) -> FileEvent:
    with malformed_answers():
        fields = json.loads(data)
        if kind != "error":
            return FileEvent.model_validate({**fields, "event": kind})
    raise rebuild(fields)
