"""Deep Agents: memory that outlives its sandbox, as a backend for `/memories/`.

A file is a document of a user, or of a session. Every change is a revision with an actor, and states the revision that
it is based on: two agents never overwrite each other. Sandboxes of the same user show the change at once.
"""

from __future__ import annotations

from typing import Any, Literal

from memo.errors import Absent, InvalidContent, InvalidKey, NameTaken, RevisionConflict, TooLarge, TooMany
from sandboxd.client import Client, Document, DocumentInfo
from sandboxd.errors import RequestError
from sandboxd.integrations.extra import needs_extra

with needs_extra("deepagents"):
    from deepagents.backends import protocol
    from deepagents.backends.protocol import (
        BackendProtocol,
        EditResult,
        FileData,
        FileDownloadResponse,
        FileInfo,
        FileUploadResponse,
        GlobResult,
        GrepResult,
        LsResult,
        ReadResult,
        WriteResult,
    )
    from deepagents.backends.utils import grep_matches_from_files, perform_string_replacement, slice_read_response
    from wcmatch import glob as wcglob

ACTOR = "deepagents"
_REFUSED = (InvalidKey, InvalidContent, NameTaken, TooLarge, TooMany, RequestError)
"""What a model can correct. An outage is raised."""


class DocumentBackend(BackendProtocol):
    """`CompositeBackend(default=…, routes={"/memories/": DocumentBackend(client, "ada")})`"""

    def __init__(
        self,
        client: Client,
        owner: str,
        *,
        scope: Literal["user", "session"] = "user",
        actor: str = ACTOR,
        tenant: str | None = None,
    ) -> None:
        """Take the id of a user, or with `scope="session"` of a session; `actor` is the writer in the history."""
        self._client = client
        self._owner = owner
        self._place: dict[str, Any] = {"scope": scope, "tenant": tenant}
        self._actor = actor

    def ls(self, path: str) -> LsResult:
        directory = f"{path.rstrip('/')}/"
        found: dict[str, FileInfo] = {}
        for info in self._files():
            if not info["path"].startswith(directory):
                continue
            head, slash, _ = info["path"][len(directory) :].partition("/")
            inside = f"{directory}{head}{slash}"
            found[inside] = FileInfo(path=inside, is_dir=True, size=0, modified_at="") if slash else info
        return LsResult(entries=[found[key] for key in sorted(found)])

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        document = self._find(file_path)
        if document is None:
            return ReadResult(error=f"File '{file_path}' not found")
        part = slice_read_response(_data(document), max(0, offset), max(0, limit))
        if isinstance(part, ReadResult):
            return part
        return ReadResult(file_data=FileData(content=part, encoding="utf-8"))

    def write(self, file_path: str, content: str) -> WriteResult:
        """Create a document. An existing one is an error in every version, so that none is replaced unread (I13)."""
        try:
            self._put(file_path, content, 0, "write_file")
        except RevisionConflict:
            return WriteResult(
                error=f"Cannot write to {file_path} because it already exists. "
                "Read and then make an edit, or write to a new path."
            )
        except _REFUSED as error:
            return WriteResult(error=f"Error: {error}")
        return WriteResult(path=file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        document = self._find(file_path)
        if document is None:
            return EditResult(error=f"Error: File '{file_path}' not found")
        replaced = perform_string_replacement(document.text, old_string, new_string, replace_all)
        if isinstance(replaced, str):
            return EditResult(error=replaced)
        text, count = replaced
        try:
            self._put(file_path, text, document.revision, "edit_file")
        except RevisionConflict:
            return EditResult(error=f"Error: {file_path} was changed by another writer; read it again, then edit it")
        except _REFUSED as error:
            return EditResult(error=f"Error: {error}")
        return EditResult(path=file_path, occurrences=count)

    def delete(self, file_path: str) -> protocol.DeleteResult:
        """Delete a document, or every document of a directory; each can be restored. Deep Agents 0.7 calls it."""
        name = file_path.strip("/")
        doomed = [one.name for one in self._documents() if one.name == name or one.name.startswith(f"{name}/")]
        if not doomed:
            return protocol.DeleteResult(error=f"Error: File '{file_path}' not found")
        try:
            for one in doomed:
                self._client.delete_memo(
                    self._owner, one, actor=self._actor, reason="Deep Agents: delete", **self._place
                )
        except _REFUSED as error:
            return protocol.DeleteResult(error=f"Error: {error}")
        return protocol.DeleteResult(path=file_path)

    def grep(self, pattern: str, path: str | None = None, glob: str | None = None) -> GrepResult:
        found = {info["path"]: self._find(info["path"]) for info in self._files()}
        files = {name: _data(document) for name, document in found.items() if document is not None}
        return grep_matches_from_files(files, pattern, path, glob)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        directory = f"{(path or '/').rstrip('/')}/"
        wanted = pattern.removeprefix(directory if pattern.startswith(directory) else "/")
        flags = wcglob.GLOBSTAR | wcglob.BRACE
        matches = [
            info
            for info in self._files()
            if info["path"].startswith(directory)
            and wcglob.globmatch(info["path"][len(directory) :], wanted, flags=flags)
        ]
        return GlobResult(matches=matches)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, self._upload(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        found = [(path, self._find(path)) for path in paths]
        return [
            FileDownloadResponse(path, error="file_not_found")
            if document is None
            else FileDownloadResponse(path, document.text.encode())
            for path, document in found
        ]

    def _files(self) -> list[FileInfo]:
        return [
            FileInfo(
                path=f"/{document.name}",
                is_dir=False,
                size=document.size,
                modified_at=document.updated_at.isoformat(),
            )
            for document in self._documents()
        ]

    def _documents(self) -> list[DocumentInfo]:
        return sorted(self._client.list_memo(self._owner, **self._place), key=lambda document: document.name)

    def _find(self, path: str) -> Document | None:
        try:
            return self._client.read_memo(self._owner, path.lstrip("/"), **self._place)
        except (Absent, InvalidKey):
            return None

    def _put(self, path: str, text: str, expected: int | None, reason: str) -> None:
        self._client.write_memo(
            self._owner,
            path.lstrip("/"),
            text,
            expected=expected,
            actor=self._actor,
            reason=f"Deep Agents: {reason}",
            **self._place,
        )

    def _upload(self, path: str, content: bytes) -> str | None:
        try:
            self._put(path, content.decode(), None, "upload_files")
        except UnicodeDecodeError:
            return f"cannot store {path}: a document is text, and this is not UTF-8"
        except InvalidKey:
            return "invalid_path"
        except _REFUSED as error:
            return str(error)
        return None


def _data(document: Document) -> FileData:
    return FileData(content=document.text, encoding="utf-8")
