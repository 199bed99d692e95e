"""Deep Agents: a sandbox as the backend of an agent's files and commands.

Listing, reading, writing, editing and copying files are calls of the daemon. Glob and grep are Deep Agents' own
commands: the daemon's tools of these names answer a model, with text that is cut to fit. A file under
`/workspace/memo` is a document: it is written and edited in the store, never in the mirror.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import mimetypes
from collections.abc import Iterator
from dataclasses import fields
from itertools import chain
from typing import Any

from sandboxd.client import Client
from sandboxd.errors import FileNotFound, IsADirectory, NotADirectory, SandboxdError
from sandboxd.integrations.extra import needs_extra
from sandboxd.models.paths import is_under
from sandboxd.runner.inside.container_paths import MEMO

with needs_extra("deepagents"):
    from deepagents.backends.protocol import (
        EditResult,
        ExecuteResponse,
        FileData,
        FileDownloadResponse,
        FileInfo,
        FileUploadResponse,
        LsResult,
        ReadResult,
        WriteResult,
    )
    from deepagents.backends.sandbox import MAX_BINARY_BYTES, MAX_OUTPUT_BYTES, TRUNCATION_MSG, BaseSandbox
    from deepagents.backends.utils import EMPTY_CONTENT_WARNING

_CODE_OF = {
    "file.not_found": "file_not_found",
    "file.not_a_directory": "file_not_found",
    "file.is_directory": "is_directory",
    "file.permission_denied": "permission_denied",
    "file.read_only": "permission_denied",
    "request.invalid": "invalid_path",
    "request.outside_sandbox": "invalid_path",
}
_WRITE_REPLACES = hasattr(BaseSandbox, "delete")
"""Whether `write` replaces an existing file: so it is from Deep Agents 0.7 on, which also brought `delete`."""
_SAYS_WHERE_TO_GO_ON = "next_offset" in {field.name for field in fields(ReadResult)}
"""Whether a page of a file says which lines it shows; from Deep Agents 0.7 on."""
_TIMED_OUT = 124
_LONGEST_S = 3600


class SandboxdBackend(BaseSandbox):
    """`SandboxdBackend(client, session)` uses a session's sandbox, which the caller makes and removes."""

    enable_capture_offload = True

    def __init__(self, client: Client, session: str, *, tenant: str | None = None) -> None:
        self._client = client
        self._session = session
        self._tenant = tenant

    @property
    def id(self) -> str:
        return self._session

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command; 0 means the longest timeout that a daemon allows unless it is set otherwise."""
        timeout_s = _LONGEST_S if timeout == 0 else timeout
        done = self._client.exec(self._session, command, timeout_s=timeout_s, merge_stderr=True, tenant=self._tenant)
        if done.timed_out:
            return ExecuteResponse(f"{done.stdout}\n[the command timed out and was killed]", _TIMED_OUT, done.truncated)
        return ExecuteResponse(done.stdout, done.exit_code, done.truncated)

    def ls(self, path: str) -> LsResult:
        try:
            entries = self._client.list_files(self._session, path, tenant=self._tenant)
        except SandboxdError as error:
            return LsResult(error=f"Path '{path}': {_reason(error)}")
        return LsResult(
            entries=[
                FileInfo(
                    path=entry.path,
                    is_dir=entry.type == "directory",
                    size=entry.size_bytes,
                    modified_at="" if entry.modified_at is None else entry.modified_at.isoformat(),
                )
                for entry in entries
            ]
        )

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Return a page of a text file, which is streamed only as far as the page reaches; else base64."""
        try:
            with self._client.open_file(self._session, file_path, tenant=self._tenant) as pieces:
                beginning = next(pieces, b"")
                content = chain([beginning], pieces)
                if _is_binary(file_path, beginning):
                    result = _read_binary(content)
                else:
                    result = _read_text(content, max(0, offset), max(0, limit))
        except SandboxdError as error:
            result = ReadResult(error=_reason(error))
        if result.error is not None:
            result.error = f"File '{file_path}': {result.error}"
        return result

    def write(self, file_path: str, content: str) -> WriteResult:
        """Create a file. Deep Agents 0.7 wants an existing one replaced, 0.6 wants an error."""
        if not _WRITE_REPLACES:
            try:
                self._client.stat_file(self._session, file_path, follow=False, tenant=self._tenant)
            except (FileNotFound, NotADirectory):
                pass
            except SandboxdError as error:
                return WriteResult(error=f"Failed to write file '{file_path}': {_reason(error)}")
            else:
                return WriteResult(error=f"Error: File already exists: '{file_path}'")
        if is_under(file_path, MEMO):
            said = self._tool("Write", file_path=file_path, contents=content)
            return WriteResult(path=file_path) if said is None else WriteResult(error=said)
        error_code = self._upload(file_path, content.encode())
        if error_code is not None:
            return WriteResult(error=f"Failed to write file '{file_path}': {error_code}")
        return WriteResult(path=file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replace text, with the line ends that the file has; readers see the old file or the new one."""
        try:
            raw = self._client.read_file(self._session, file_path, tenant=self._tenant)
            changed, count = _replaced(raw.decode(), old_string, new_string, replace_all)
            if is_under(file_path, MEMO):
                arguments = {"old_string": old_string, "new_string": new_string, "replace_all": replace_all}
                said = self._tool("Edit", file_path=file_path, **arguments)
                return EditResult(path=file_path, occurrences=count) if said is None else EditResult(error=said)
            self._client.write_file(self._session, file_path, changed, tenant=self._tenant)
        except UnicodeDecodeError:
            return EditResult(error=f"Error: File '{file_path}' is not a text file")
        except FileNotFound:
            return EditResult(error=f"Error: File '{file_path}' not found")
        except IsADirectory:
            return EditResult(error=f"Error: '{file_path}' is not a regular file")
        except ValueError as error:
            return EditResult(error=str(error))
        except SandboxdError as error:
            return EditResult(error=f"Error editing file '{file_path}': {_reason(error)}")
        return EditResult(path=file_path, occurrences=count)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, self._upload(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    async def als(self, path: str) -> LsResult:
        return await asyncio.to_thread(self.ls, path)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        return await asyncio.to_thread(self.read, file_path, offset, limit)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        return await asyncio.to_thread(self.write, file_path, content)

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        return await asyncio.to_thread(self.edit, file_path, old_string, new_string, replace_all)

    def _upload(self, path: str, content: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._client.write_file(self._session, path, content, tenant=self._tenant)
        except SandboxdError as error:
            return _reason(error)
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path, error="invalid_path")
        try:
            return FileDownloadResponse(path, self._client.read_file(self._session, path, tenant=self._tenant))
        except SandboxdError as error:
            return FileDownloadResponse(path, error=_reason(error))

    def _tool(self, name: str, **arguments: Any) -> str | None:
        """Call a tool that writes memory; return what it tells the model if nothing was written."""
        result = self._client.tool(self._session, name, arguments, tenant=self._tenant)
        return None if result.ok else f"Error: {result.content}"


def _reason(error: SandboxdError) -> str:
    return _CODE_OF.get(error.code, str(error))


def _replaced(text: str, old: str, new: str, replace_all: bool) -> tuple[str, int]:
    """Return the new text and the number of replacements; raise ValueError with a sentence for the model."""
    # Line ends are shown as LF, so a model never writes CRLF; the file keeps the one it has.
    plain, plain_new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    candidates = [(old, new), (plain.replace("\n", "\r\n"), plain_new.replace("\n", "\r\n")), (plain, plain_new)]
    for wanted, replacement in candidates:
        count = text.count(wanted) if wanted else 0
        if count > 1 and not replace_all:
            raise ValueError(
                f"Error: String '{old}' appears multiple times. Use replace_all=True to replace all occurrences."
            )
        if count:
            return text.replace(wanted, replacement), count
    raise ValueError(f"Error: String not found in file: '{old}'")


def _read_text(pieces: Iterator[bytes], offset: int, limit: int) -> ReadResult:
    """Return a page of lines, and stop reading where it ends."""
    page: list[str] = []
    room = MAX_OUTPUT_BYTES - len(TRUNCATION_MSG.encode())
    count, whole, is_over = 0, 0, True
    for count, line in enumerate(_lines(pieces), 1):
        if count <= offset:
            continue
        if len(page) >= limit:
            is_over = False
            break
        encoded = line.removesuffix("\r").encode()
        page.append(encoded[:room].decode(errors="ignore"))
        room -= len(encoded) + 1
        if room <= 0:
            page[-1] += TRUNCATION_MSG
            is_over = False
            break
        whole += 1
    if not count:
        return _found(EMPTY_CONTENT_WARNING)
    if not page and limit > 0:
        return ReadResult(error=f"Line offset {offset} exceeds file length ({count} lines)")
    result = _found("\n".join(page))
    if page and _SAYS_WHERE_TO_GO_ON:
        end = offset + max(1, whole)  # a line that was cut is read again, unless it is alone
        result.start_line, result.end_line = offset + 1, end
        result.next_offset = None if is_over else end
    return result


def _lines(pieces: Iterator[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    for piece in pieces:
        *lines, rest = (rest + decoder.decode(piece)).split("\n")
        yield from lines
        rest = rest[:MAX_OUTPUT_BYTES]  # no more of a line is ever shown
    if rest:
        yield rest


def _read_binary(pieces: Iterator[bytes]) -> ReadResult:
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > MAX_BINARY_BYTES:
            return ReadResult(error=f"Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes")
    return _found(base64.b64encode(content).decode(), "base64")


def _found(content: str, encoding: str = "utf-8") -> ReadResult:
    return ReadResult(file_data=FileData(content=content, encoding=encoding))


def _is_binary(path: str, beginning: bytes) -> bool:
    kind = mimetypes.guess_type(path)[0] or ""
    if kind.startswith(("image/", "audio/", "video/", "application/pdf")) and beginning:
        return True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning)
    except UnicodeDecodeError:
        return True
    return False
