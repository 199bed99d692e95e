"""Read: numbered lines of a text file; a memory document from the session's mirror, other files by the runner."""

from __future__ import annotations

from itertools import pairwise

from pydantic import Field

from memo.documents import DocumentKey
from memo.errors import InvalidKey
from sandboxd.errors import NotFound
from sandboxd.models.paths import AbsolutePath, is_under
from sandboxd.models.tool import ToolResult
from sandboxd.runner.calls import TextSlice
from sandboxd.runner.inside.container_paths import MEMO
from sandboxd.tools.context import ToolArguments, ToolContext
from sandboxd.tools.memory import key_of

name = "Read"
description = (
    "Read a text file in the sandbox. Lines are numbered as by `cat -n`; the numbers are not part of the file. A long "
    "file is returned in parts: continue with offset."
)

MAX_LINE_CHARACTERS = 2_000
MAX_SLICE_BYTES = 262_144
"""The runner's bounds for a workspace file, so that both read alike."""


class Arguments(ToolArguments):
    file_path: AbsolutePath = Field(description="Absolute path of the file.")
    offset: int = Field(default=1, ge=0, le=2**31, description="The first line to return, counted from 1.")
    limit: int = Field(default=2000, ge=1, le=100_000, description="The most lines to return.")


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    first = max(arguments.offset, 1)
    part = None
    if is_under(arguments.file_path, MEMO):
        part = await _read_document(context, arguments.file_path, first, arguments.limit)
    if part is None:
        part = await context.runner.read_text(arguments.file_path, first, arguments.limit)
    details = {
        "path": arguments.file_path,
        "first_line": part.first_line,
        "lines": len(part.lines),
        "total_lines": part.total_lines,
        "truncated": part.truncated,
    }
    total = f"{part.total_lines}" if part.is_total_exact else f"at least {part.total_lines}"
    if not part.lines:
        if part.total_lines == 0:
            return ToolResult(ok=True, content="[the file is empty]", details=details)
        return ToolResult(
            ok=False,
            content=f"[offset {first} is past the end: the file has {total} lines; use a smaller offset]",
            details=details,
        )
    text = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(part.lines, part.first_line))
    last = part.first_line + len(part.lines) - 1
    if last < part.total_lines:
        text += f"\n[lines {part.first_line} to {last} of {total}; continue with offset {last + 1}]"
    elif part.truncated:
        text += "\n[very long lines were cut, or the file is larger than Read can return; use Bash to see the rest]"
    return ToolResult(ok=True, content=text, details=details)


async def _read_document(context: ToolContext, path: str, first: int, limit: int) -> TextSlice | None:
    """Read a memory document and record what the session saw; None if the runner must read the path."""
    if context.memory is None:
        return None
    try:
        key = key_of(context, path)
    except (InvalidKey, NotFound):
        return None
    if not isinstance(key, DocumentKey):
        return None
    agents = context.memory.agents
    document = await agents.read(context.ref, key)
    if document is None:
        return None
    part, uncut = slice_text(document.content, first, limit)
    for lines in uncut:
        agents.saw_lines(context.ref, key, document, lines, part.total_lines)
    return part


def slice_text(text: str, first: int, limit: int) -> tuple[TextSlice, list[range]]:
    """Return lines as the runner does, and the ranges of those not cut short, counted from 0."""
    all_lines = text.split("\n")
    if all_lines[-1] == "":
        all_lines.pop()
    lines: list[str] = []
    cut: list[int] = []
    room = MAX_SLICE_BYTES
    for line in all_lines[first - 1 : first - 1 + limit]:
        room -= len(line[:MAX_LINE_CHARACTERS].encode()) + 1
        if room < 0:
            break
        if len(line) > MAX_LINE_CHARACTERS:
            cut.append(first - 1 + len(lines))
        lines.append(line[:MAX_LINE_CHARACTERS])
    end = first - 1 + len(lines)
    edges = [first - 2, *cut, end]
    uncut = [range(before + 1, after) for before, after in pairwise(edges)]
    is_truncated = bool(cut) or end < len(all_lines)
    return TextSlice(tuple(lines), first, len(all_lines), is_truncated), uncut
