"""Write: a whole file, replaced in one step."""

from __future__ import annotations

from pydantic import Field

from sandboxd.tools.context import SandboxPath, ToolArguments, ToolContext, ToolResult, refuse_write

name = "Write"
description = "Write a file of the sandbox. Replaces what is there and makes missing directories."


class Arguments(ToolArguments):
    file_path: SandboxPath = Field(description="Absolute path of the file.")
    contents: str = Field(description="The whole new text of the file.")


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    if (refusal := refuse_write(arguments.file_path)) is not None:
        return refusal
    stat = await context.runner.write_file(arguments.file_path, arguments.contents.encode())
    return ToolResult(
        True, f"Wrote {stat.size_bytes} bytes to {stat.path}.", {"path": stat.path, "size_bytes": stat.size_bytes}
    )
