"""What Anthropic's memory tool answers: the texts that the model knows from the SDK's own tool over files.

Pure. `/memories/NAME` is the document NAME, and a directory is what the names of documents have in common.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from pydantic import BaseModel, ValidationError

from memo.errors import (
    Absent,
    InvalidContent,
    InvalidKey,
    NameTaken,
    RevisionConflict,
    TooLarge,
    TooMany,
    Unsupported,
)
from sandboxd.client import DocumentInfo
from sandboxd.errors import RequestError
from sandboxd.integrations.extra import needs_extra

with needs_extra("anthropic"):
    from anthropic.lib.tools import ToolError
    from anthropic.types import beta

ROOT = "/memories"
_COMMANDS: dict[str, type[BaseModel]] = {
    "view": beta.BetaMemoryTool20250818ViewCommand,
    "create": beta.BetaMemoryTool20250818CreateCommand,
    "str_replace": beta.BetaMemoryTool20250818StrReplaceCommand,
    "insert": beta.BetaMemoryTool20250818InsertCommand,
    "delete": beta.BetaMemoryTool20250818DeleteCommand,
    "rename": beta.BetaMemoryTool20250818RenameCommand,
}
_REFUSED = (InvalidKey, InvalidContent, NameTaken, TooLarge, TooMany, Absent, Unsupported, RequestError)
"""What a model can correct."""
_MOST_LINES = 999_999
_MOST_FOUND = 100
"""How many places of a text are named, so that what the model reads stays short."""
_CONTEXT_LINES = 2
_DEPTH = 2
CHANGED = "The file has changed since it was read. View it again, then repeat the change."


@contextmanager
def told_to_the_model(conflict: str = CHANGED) -> Iterator[None]:
    """Answer what a model can correct; let an outage reach the program."""
    try:
        yield
    except RevisionConflict as error:
        raise ToolError(conflict) from error
    except _REFUSED as error:
        raise ToolError(str(error)) from error


def checked(given: object) -> BaseModel:
    """Return a model's command; raise what to tell the model if it is none, or lacks something."""
    if isinstance(given, BaseModel):
        return given
    name = given.get("command") if isinstance(given, Mapping) else None
    kind = _COMMANDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ToolError(f"cannot use this call: command must be one of {', '.join(_COMMANDS)}")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        wrong = [
            f"{problem['loc'][0]} is missing" if problem["type"] == "missing" else f"{problem['loc'][0]} is invalid"
            for problem in error.errors()
        ]
        takes = [field for field in kind.model_fields if field != "command"]
        raise ToolError(
            f"cannot {name}: {'; '.join(dict.fromkeys(wrong))}. {name} takes {', '.join(takes)}."
        ) from error


def name_of(path: str) -> str:
    """Return the document's name; the empty text for the root."""
    if not path.startswith(ROOT):
        raise ToolError(f"Path must start with {ROOT}, got: {path}")
    normal = posixpath.normpath(path)
    if normal != ROOT and not normal.startswith(f"{ROOT}/"):
        raise ToolError(f"Path {path} would escape {ROOT} directory")
    return normal[len(ROOT) + 1 :]


def below(name: str, documents: Iterable[DocumentInfo]) -> dict[str, DocumentInfo]:
    """Return the documents of a directory by their names relative to it."""
    prefix = f"{name}/" if name else ""
    return {document.name[len(prefix) :]: document for document in documents if document.name.startswith(prefix)}


def not_a_file(path: str, name: str, documents: list[DocumentInfo]) -> ToolError:
    if not name or below(name, documents):
        return ToolError(f"The path {path} is not a file.")
    return ToolError(f"The path {path} does not exist. Please provide a valid path.")


def shown_file(path: str, text: str, view_range: list[int] | None) -> str:
    lines = text.split("\n")
    if len(lines) > _MOST_LINES:
        raise ToolError(f"File {path} exceeds maximum line limit of {_MOST_LINES:,} lines.")
    first, last = 1, len(lines)
    if view_range and len(view_range) == 2:
        first = max(1, view_range[0])
        last = len(lines) if view_range[1] == -1 else view_range[1]
    return f"Here's the content of {path} with line numbers:\n{_numbered(lines, first, last)}"


def shown_directory(path: str, name: str, documents: list[DocumentInfo]) -> str:
    """Return files and directories up to two levels deep, each with its size; a directory has that of its files."""
    inside = below(name, documents)
    if name and not inside:
        raise ToolError(f"The path {path} does not exist. Please provide a valid path.")
    sizes: dict[tuple[str, ...], int] = {}
    directories: set[tuple[str, ...]] = set()
    for relative, document in inside.items():
        parts = tuple(relative.split("/"))
        for depth in range(min(len(parts), _DEPTH) + 1):
            sizes[parts[:depth]] = sizes.get(parts[:depth], 0) + document.size
            if depth < len(parts):
                directories.add(parts[:depth])
    header = f"Here're the files and directories up to {_DEPTH} levels deep in {path}, excluding hidden items:"
    lines = [header, f"{_size(sizes.pop((), 0))}\t{path}"]
    for parts, size in sorted(sizes.items()):
        lines.append(f"{_size(size)}\t{'/'.join((path, *parts))}{'/' if parts in directories else ''}")
    return "\n".join(lines)


def replaced(path: str, text: str, old: str, new: str) -> tuple[str, str]:
    """Return the new text, and the answer with the lines around the change."""
    found: list[int] = []
    line, before = 1, 0
    at = text.find(old)
    while at >= 0 and len(found) <= _MOST_FOUND:
        line, before = line + text.count("\n", before, at), at
        found.append(line)
        at = text.find(old, at + 1)
    if not found:
        raise ToolError(f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")
    if len(found) > 1:
        more = " and more" if len(found) > _MOST_FOUND else ""
        raise ToolError(
            f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: "
            f"{', '.join(map(str, found[:_MOST_FOUND]))}{more}. Please ensure it is unique"
        )
    changed = text.replace(old, new)
    snippet = _numbered(changed.split("\n"), found[0] - _CONTEXT_LINES, found[0] + _CONTEXT_LINES)
    edited = "The memory file has been edited. Here is the snippet showing the change (with line numbers):"
    return changed, f"{edited}\n{snippet}"


def inserted(text: str, line: int, new: str) -> str:
    lines = text.removesuffix("\n").split("\n") if text else []
    if not 0 <= line <= len(lines):
        raise ToolError(f"Invalid `insert_line` parameter: {line}. It should be within the range [0, {len(lines)}].")
    lines.insert(line, new.rstrip("\n"))
    return "\n".join(lines).removesuffix("\n") + "\n"


def deleted_names(path: str, documents: list[DocumentInfo]) -> list[str]:
    """Return the names of the documents at a path or below it."""
    name = name_of(path)
    if not name:
        raise ToolError(f"Cannot delete the {ROOT} directory itself")
    found = [document.name for document in documents if f"{document.name}/".startswith(f"{name}/")]
    if not found:
        raise ToolError(f"The path {path} does not exist")
    return found


def renamed_names(old_path: str, new_path: str, documents: list[DocumentInfo]) -> list[tuple[str, str]]:
    """Return the old and the new name of every document at a path or below it."""
    old, new = name_of(old_path), name_of(new_path)
    if not old:
        raise ToolError(f"Cannot rename the {ROOT} directory itself")
    names = [document.name for document in documents]
    if not new or any(f"{name}/".startswith(f"{new}/") for name in names):
        raise ToolError(f"The destination {new_path} already exists")
    moved = [(name, new + name[len(old) :]) for name in names if f"{name}/".startswith(f"{old}/")]
    if not moved:
        raise ToolError(f"The path {old_path} does not exist")
    return moved


def _numbered(lines: list[str], first: int, last: int) -> str:
    first = max(1, first)
    return "\n".join(f"{number:>6}\t{line}" for number, line in enumerate(lines[first - 1 : last], first))


def _size(count: int) -> str:
    for unit, factor in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if count >= factor:
            return f"{count // factor}{unit}" if count % factor == 0 else f"{count / factor:.1f}{unit}"
    return f"{count}B"
