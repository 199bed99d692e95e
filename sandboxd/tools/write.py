"""Write: replace a whole file in one step; under the memo path in the store, anywhere else in the container."""

from __future__ import annotations

from pydantic import Field

from sandboxd.models.paths import SandboxPath, is_under
from sandboxd.models.tool import ToolResult
from sandboxd.runner.inside.container_paths import MEMO
from sandboxd.tools.context import ToolArguments, ToolContext, check_writable
from sandboxd.tools.memory import write_memo

name = "Write"
description = (
    "Write a file in the sandbox. Replaces an existing file and creates missing directories. A file under "
    "/workspace/memo is shared memory that others also change: Read it before you replace it. Changes that others made "
    "since then are merged; if they touch the same lines, nothing is written and the newer text is returned."
)


class Arguments(ToolArguments):
    file_path: SandboxPath = Field(description="Absolute path of the file.")
    contents: str = Field(description="The complete new text of the file.")


def writes_memory(arguments: Arguments) -> bool:
    return is_under(arguments.file_path, MEMO)


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    if is_under(arguments.file_path, MEMO):
        return await write_memo(context, arguments.file_path, arguments.contents, name)
    check_writable(arguments.file_path)
    stat = await context.runner.write_file(arguments.file_path, arguments.contents.encode())
    return ToolResult(
        ok=True,
        content=f"Wrote {stat.size_bytes} bytes to {stat.path}.",
        details={"path": stat.path, "size_bytes": stat.size_bytes},
    )
