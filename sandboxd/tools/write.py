"""Write: a whole file, replaced in one step; a memo path in the store, anything else in the container."""

from __future__ import annotations

from pydantic import Field

from sandboxd.tools.context import MEMO, SandboxPath, ToolArguments, ToolContext, ToolResult, check_writable, is_under
from sandboxd.tools.memory import write_memo

name = "Write"
description = (
    "Write a file of the sandbox. Replaces what is there and makes missing directories. A file under /workspace/memo "
    "is memory, which others change, too: Read it before you replace it. What others changed since then is merged, or, "
    "if it touches the same lines, nothing is written and the newer text is returned."
)


class Arguments(ToolArguments):
    file_path: SandboxPath = Field(description="Absolute path of the file.")
    contents: str = Field(description="The whole new text of the file.")


def writes_memory(arguments: Arguments) -> bool:
    return is_under(arguments.file_path, MEMO)


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    if is_under(arguments.file_path, MEMO):
        return await write_memo(context, arguments.file_path, arguments.contents, name)
    check_writable(arguments.file_path)
    stat = await context.runner.write_file(arguments.file_path, arguments.contents.encode())
    return ToolResult(
        True, f"Wrote {stat.size_bytes} bytes to {stat.path}.", {"path": stat.path, "size_bytes": stat.size_bytes}
    )
