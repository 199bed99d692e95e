"""Deep Agents: a sandbox backend. Listing, search and edits are its own scripts, run with `execute`."""

from __future__ import annotations

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileOperationError, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from sandboxd.client import Client
from sandboxd.errors import SandboxdError

_ERROR_OF: dict[str, FileOperationError] = {
    "file.not_found": "file_not_found",
    "file.is_directory": "is_directory",
    "file.permission_denied": "permission_denied",
    "file.read_only": "permission_denied",
    "request.invalid": "invalid_path",
}


class SandboxdBackend(BaseSandbox):
    enable_capture_offload = True

    def __init__(self, client: Client, session: str) -> None:
        self._client = client
        self._session = session

    @property
    def id(self) -> str:
        return self._session

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        done = self._client.exec(self._session, command, timeout_s=timeout, merge_stderr=True)
        return ExecuteResponse(done.stdout, done.exit_code, done.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, self._upload(path, content)) for path, content in files]

    def _upload(self, path: str, content: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._client.write_file(self._session, path, content)
        except SandboxdError as error:
            return _ERROR_OF.get(error.code, str(error))
        return None

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [self._download(path) for path in paths]

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path, error="invalid_path")
        try:
            return FileDownloadResponse(path, self._client.read_file(self._session, path))
        except SandboxdError as error:
            return FileDownloadResponse(path, error=_ERROR_OF.get(error.code, str(error)))
