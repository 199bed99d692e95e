"""Anthropic's memory tool over a user's documents: `/memories/NAME` is the user's document NAME.

Every change names the revision that it is based on, so two agents never overwrite each other unseen.
"""

from __future__ import annotations

import posixpath

from anthropic.lib.tools import BetaAbstractMemoryTool, ToolError
from anthropic.types.beta import (
    BetaMemoryTool20250818CreateCommand,
    BetaMemoryTool20250818DeleteCommand,
    BetaMemoryTool20250818InsertCommand,
    BetaMemoryTool20250818RenameCommand,
    BetaMemoryTool20250818StrReplaceCommand,
    BetaMemoryTool20250818ViewCommand,
)

from memo.errors import Absent, InvalidKey, RevisionConflict
from sandboxd.client import Client, Document

_ROOT = "/memories"
_MOST_LINES = 999_999
_CONTEXT_LINES = 2


class SandboxdMemoryTool(BetaAbstractMemoryTool):
    def __init__(self, client: Client, user: str) -> None:
        super().__init__()
        self._client = client
        self._user = user

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        name = _name_of(command.path)
        if not name:
            return self._list(command.path)
        lines = self._read(name, command.path).text.split("\n")
        if len(lines) > _MOST_LINES:
            raise ToolError(f"File {command.path} exceeds maximum line limit of {_MOST_LINES:,} lines.")
        first, last = 1, len(lines)
        if command.view_range and len(command.view_range) == 2:
            first = max(1, command.view_range[0])
            last = len(lines) if command.view_range[1] == -1 else command.view_range[1]
        return f"Here's the content of {command.path} with line numbers:\n{_numbered(lines, first, last)}"

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        name = _name_of(command.path)
        try:
            self._client.write_memo(self._user, name, command.file_text, scope="user", expected=0)
        except RevisionConflict as error:
            raise ToolError(f"File {command.path} already exists") from error
        except InvalidKey as error:
            raise ToolError(str(error)) from error
        return f"File created successfully at: {command.path}"

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        name = _name_of(command.path)
        document = self._read(name, command.path)
        found = [
            document.text.count("\n", 0, at) + 1
            for at in range(len(document.text))
            if document.text.startswith(command.old_str, at)
        ]
        if not found:
            raise ToolError(
                f"No replacement was performed, old_str `{command.old_str}` did not appear verbatim in {command.path}."
            )
        if len(found) > 1:
            raise ToolError(
                f"No replacement was performed. Multiple occurrences of old_str `{command.old_str}` in lines: "
                f"{', '.join(map(str, found))}. Please ensure it is unique"
            )
        text = document.text.replace(command.old_str, command.new_str)
        self._write(name, text, document)
        snippet = _numbered(text.split("\n"), found[0] - _CONTEXT_LINES, found[0] + _CONTEXT_LINES)
        edited = "The memory file has been edited. Here is the snippet showing the change (with line numbers):"
        return f"{edited}\n{snippet}"

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        name = _name_of(command.path)
        document = self._read(name, command.path)
        lines = document.text.removesuffix("\n").split("\n") if document.text else []
        if not 0 <= command.insert_line <= len(lines):
            raise ToolError(
                f"Invalid `insert_line` parameter: {command.insert_line}. "
                f"It should be within the range [0, {len(lines)}]."
            )
        lines.insert(command.insert_line, command.insert_text.rstrip("\n"))
        self._write(name, "\n".join(lines).removesuffix("\n") + "\n", document)
        return f"The file {command.path} has been edited."

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        name = _name_of(command.path)
        if not name:
            raise ToolError("Cannot delete the /memories directory itself")
        if not self._exists(name):
            raise ToolError(f"The path {command.path} does not exist")
        raise ToolError(f"cannot delete {command.path}: a document cannot be deleted")

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        old, new = _name_of(command.old_path), _name_of(command.new_path)
        if not old:
            raise ToolError("Cannot rename the /memories directory itself")
        if not new or self._exists(new):
            raise ToolError(f"The destination {command.new_path} already exists")
        if not self._exists(old):
            raise ToolError(f"The path {command.old_path} does not exist")
        raise ToolError(f"cannot rename {command.old_path}: a document cannot be renamed")

    def _list(self, path: str) -> str:
        documents = sorted(self._client.list_memo(self._user, scope="user"), key=lambda document: document.name)
        header = f"Here're the files and directories up to 2 levels deep in {path}, excluding hidden items:"
        total = sum(document.size for document in documents)
        return "\n".join([header, f"{_size(total)}\t{path}", *(f"{_size(d.size)}\t{path}/{d.name}" for d in documents)])

    def _read(self, name: str, path: str) -> Document:
        if self._exists(name):
            return self._client.read_memo(self._user, name, scope="user")
        raise ToolError(f"The path {path} does not exist. Please provide a valid path.")

    def _exists(self, name: str) -> bool:
        try:
            self._client.read_memo(self._user, name, scope="user")
        except (Absent, InvalidKey):
            return False
        return True

    def _write(self, name: str, text: str, seen: Document) -> None:
        try:
            self._client.write_memo(self._user, name, text, scope="user", expected=seen.revision)
        except RevisionConflict as error:
            raise ToolError("the file has changed since it was read; view it again, then repeat the change") from error


def _name_of(path: str) -> str:
    if not path.startswith(_ROOT):
        raise ToolError(f"Path must start with /memories, got: {path}")
    normal = posixpath.normpath(path)
    if normal != _ROOT and not normal.startswith(f"{_ROOT}/"):
        raise ToolError(f"Path {path} would escape /memories directory")
    return normal[len(_ROOT) + 1 :]


def _numbered(lines: list[str], first: int, last: int) -> str:
    first = max(1, first)
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines[first - 1 : last], first))


def _size(count: int) -> str:
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count >= factor:
            return f"{count // factor}{unit}" if count % factor == 0 else f"{count / factor:.1f}{unit}"
    return f"{count}B"
