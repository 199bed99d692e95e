"""Read: some lines of a text file, numbered."""

from __future__ import annotations

from pydantic import Field

from sandboxd.tools.context import SandboxPath, ToolArguments, ToolContext, ToolResult

name = "Read"
description = (
    "Read a text file of the sandbox. Lines come numbered, as `cat -n` shows them; the numbers are not part of the "
    "file. A long file is returned in parts: read on with offset."
)


class Arguments(ToolArguments):
    file_path: SandboxPath = Field(description="Absolute path of the file.")
    offset: int = Field(default=1, ge=0, le=2**31, description="The first line to return, counted from 1.")
    limit: int = Field(default=2000, ge=1, le=100_000, description="How many lines to return at most.")


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    first = max(arguments.offset, 1)
    part = await context.runner.read_text(arguments.file_path, first, arguments.limit)
    details = {
        "path": arguments.file_path,
        "first_line": part.first_line,
        "lines": len(part.lines),
        "total_lines": part.total_lines,
        "truncated": part.truncated,
    }
    if not part.lines:
        if part.total_lines == 0:
            return ToolResult(True, "[the file is empty]", details)
        return ToolResult(False, f"[there is no line {first}: the file has {part.total_lines} lines]", details)
    text = "\n".join(f"{number:6}\t{line}" for number, line in enumerate(part.lines, part.first_line))
    last = part.first_line + len(part.lines) - 1
    if last < part.total_lines:
        text += f"\n[lines {part.first_line} to {last} of {part.total_lines}; read on with offset {last + 1}]"
    elif part.truncated:
        text += "\n[very long lines were cut, or the file goes on beyond what can be read this way]"
    return ToolResult(True, text, details)
