"""File calls; and the files of a `Sandbox`."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, overload

from sandboxd.client._async.calls import AsyncCalls, AsyncSandboxPart
from sandboxd.client.errors import malformed_answers
from sandboxd.client.request import CREATE_S, GRACE_S, Answer, Request, encode_text, json_request, with_query
from sandboxd.client.stdin import async_checked
from sandboxd.errors import FileNotFound, NotADirectory
from sandboxd.models.files import DirectoryPage, FileInfo

ListedFiles = list[FileInfo]  # in a class with a method `list`, that name is the method

REMOVAL_S = 300.0 + GRACE_S
"""The daemon stops the removal of a tree after 300 s."""


class AsyncFileCalls(AsyncCalls):
    def _files_path(self, session: str, tenant: str | None) -> str:
        return f"{self._session_path(session, tenant)}/files"

    async def read_file(self, session: str, path: str, *, tenant: str | None = None) -> bytes:
        target = with_query(self._files_path(session, tenant), path=path)
        return (await self._send(json_request("GET", target))).body

    @asynccontextmanager
    async def open_file(
        self, session: str, path: str, *, tenant: str | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream a file: `async with client.open_file(...) as pieces:`"""
        target = with_query(self._files_path(session, tenant), path=path)
        async with self._stream(json_request("GET", target)) as pieces:
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


class AsyncSandboxFiles(AsyncSandboxPart[AsyncFileCalls]):
    """The files of a sandbox. A relative path is relative to /workspace."""

    @overload
    async def read(self, path: str, format: Literal["text"] = "text") -> str: ...

    @overload
    async def read(self, path: str, format: Literal["bytes"]) -> bytes: ...

    async def read(self, path: str, format: Literal["text", "bytes"] = "text") -> str | bytes:
        """Return a file as text, in which bytes that are not UTF-8 are replaced, or as bytes."""
        content = await self._calls.read_file(self._session, _absolute(path), tenant=self._tenant)
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


def _absolute(path: str) -> str:
    return path if path.startswith(("/", "file:///")) else f"/workspace/{path}"
