"""Read: numbered lines of a text file; a memory document from the session's mirror, other files by the runner."""

from __future__ import annotations

from itertools import pairwise

from pydantic import Field

from memo.documents import DocumentKey
from memo.errors import InvalidKey
from sandboxd.errors import FileNotFound, InvalidRequest, NotFound
from sandboxd.models.paths import is_under
from sandboxd.models.tool import ToolResult
from sandboxd.runner.calls import TextSlice
from sandboxd.runner.inside.container_paths import MEMO
from sandboxd.tools.arguments import ReadablePath, ToolArguments, also
from sandboxd.tools.context import ToolContext
from sandboxd.tools.formats import ToolHints
from sandboxd.tools.memory import key_of
from sandboxd.tools.missing_files import with_suggestions

name = "Read"
description = (
    "Read a text file in the sandbox. Lines are numbered as by `cat -n`; the numbers are not part of the file. A long "
    "file is returned in parts: continue with offset. A negative offset counts lines from the end."
)

hints = ToolHints(title="Read a file", read_only=True)

MAX_LINE_CHARACTERS = 2_000
MAX_SLICE_BYTES = 262_144
"""The runner's bounds for a workspace file, so that both read alike."""
_MOST_NUMBERS = 10


class Arguments(ToolArguments):
    aliases = also(file_path="path file filename", offset="start_line start line", limit="max_lines num_lines lines")

    file_path: ReadablePath = Field(
        min_length=1, description="The path of the file. A relative path is relative to /workspace."
    )
    offset: int = Field(
        default=1,
        ge=-(2**31),
        le=2**31,
        description="The first line to return, counted from 1; -10 returns the last 10 lines.",
    )
    limit: int = Field(default=2000, ge=1, le=100_000, description="The most lines to return.")


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    path, first = arguments.file_path, arguments.offset or 1
    if first < 0:
        end = await _read(context, path, 1, 1)
        if not end.is_total_exact:
            raise InvalidRequest(
                f"cannot count the lines of {path} from its end: the file is too large; run `tail -n {-first}` with "
                "Bash instead"
            )
        first = max(1, end.total_lines + first + 1)
    return _render(path, first, await _read(context, path, first, arguments.limit))


async def _read(context: ToolContext, path: str, first: int, limit: int) -> TextSlice:
    part = await _read_document(context, path, first, limit) if is_under(path, MEMO) else None
    try:
        return part or await context.runner.read_text(path, first, limit)
    except FileNotFound as error:
        raise await with_suggestions(context.runner, error, path) from None


def _render(path: str, first: int, part: TextSlice) -> ToolResult:
    details = {
        "path": path,
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
            details={**details, "code": InvalidRequest.code},
        )
    text = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(part.lines, part.first_line))
    return ToolResult(ok=True, content=text + _notes(part, total), details=details)


def _notes(part: TextSlice, total: str) -> str:
    """Return what is missing from the text, and how to see it."""
    notes = ""
    last = part.first_line + len(part.lines) - 1
    cut = [number for number, line in enumerate(part.lines, part.first_line) if len(line) >= MAX_LINE_CHARACTERS]
    if cut and part.truncated:
        some = ", ".join(map(str, cut[:_MOST_NUMBERS])) + (", ..." if len(cut) > _MOST_NUMBERS else "")
        notes += (
            f"\n[cut after {MAX_LINE_CHARACTERS} characters: line{'s' if len(cut) > 1 else ''} {some}; use Bash to see "
            f"the rest, for example `sed -n {cut[0]}p FILE | cut -c {MAX_LINE_CHARACTERS + 1}-`]"
        )
    if last < part.total_lines:
        notes += f"\n[lines {part.first_line} to {last} of {total}; continue with offset {last + 1}]"
    elif part.truncated and not cut:
        notes += "\n[the file is larger than Read can return; use Bash to see the rest]"
    return notes


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
