"""What Anthropic's memory tool answers: the texts that the model knows from the SDK's own tool over files.

Pure. `/memories/NAME` is the document NAME, and a directory is what the names of documents have in common.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from memo.errors import Absent, InvalidContent, InvalidKey, RevisionConflict, TooLarge, Unsupported
from sandboxd.client import DocumentInfo
from sandboxd.errors import RequestError
from sandboxd.integrations.extra import needs_extra

with needs_extra("anthropic"):
    from anthropic.lib.tools import ToolError

ROOT = "/memories"
_MOST_LINES = 999_999
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
    except (InvalidKey, InvalidContent, TooLarge, Absent, Unsupported, RequestError) as error:
        raise ToolError(str(error)) from error


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
    at = text.find(old)
    while at >= 0:
        found.append(text.count("\n", 0, at) + 1)
        at = text.find(old, at + 1)
    if not found:
        raise ToolError(f"No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")
    if len(found) > 1:
        raise ToolError(
            f"No replacement was performed. Multiple occurrences of old_str `{old}` in lines: "
            f"{', '.join(map(str, found))}. Please ensure it is unique"
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
