"""A plain provider that outlives its process: files in a directory, no revisions, no feed, no list of documents.

With such a store the daemon must compare contents by hash itself, and refresh on request.
"""

from __future__ import annotations

import os
from pathlib import Path

PLACE = "SANDBOXD_TEST_PLAIN"


class PlainStore:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        return _read(self._document(tenant, owner, scope, name))

    async def write_memory_document(self, tenant: str, owner: str, scope: str, name: str, content: str) -> None:
        _write(self._document(tenant, owner, scope, name), content)

    async def read_tool_result_artifact(self, session_ref: str, tool_call_id: str) -> str | None:
        return _read(self._root / "artifacts" / str(session_ref) / tool_call_id)

    async def write_tool_result_artifact(self, session_ref: str, tool_call_id: str, content: str) -> None:
        _write(self._root / "artifacts" / str(session_ref) / tool_call_id, content)

    async def list_tool_result_artifact_ids(self, session_ref: str) -> list[str]:
        directory = self._root / "artifacts" / str(session_ref)
        return sorted(path.name for path in directory.glob("[!.]*"))

    def _document(self, tenant: str, owner: str, scope: str, name: str) -> Path:
        return self._root / tenant / scope / owner / name


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


def make() -> PlainStore:
    return PlainStore(Path(os.environ[PLACE]))
