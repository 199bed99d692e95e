"""Write: replace a whole file in one step; under the memo path in the store, anywhere else in the container."""

from __future__ import annotations

from pydantic import Field

from sandboxd.models.paths import is_under
from sandboxd.models.tool import ToolResult
from sandboxd.runner.inside.container_paths import MEMO
from sandboxd.tools.arguments import ToolArguments, ToolPath, also
from sandboxd.tools.context import ToolContext, check_writable
from sandboxd.tools.formats import ToolHints
from sandboxd.tools.memory import write_memo

name = "Write"
description = (
    "Write a file in the sandbox. Replaces an existing file and creates missing directories. A file under "
    "/workspace/memo is shared memory that others also change: Read it before you replace it. Changes that others made "
    "since then are merged; if they touch the same lines, nothing is written and the newer text is returned."
)

hints = ToolHints(title="Write a file", idempotent=True)


class Arguments(ToolArguments):
    aliases = also(file_path="path file filename", content="contents text file_text")

    file_path: ToolPath = Field(
        min_length=1, description="The path of the file. A relative path is relative to /workspace."
    )
    content: str = Field(description="The complete new text of the file.")


def writes_memory(arguments: Arguments) -> bool:
    return is_under(arguments.file_path, MEMO)


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    if is_under(arguments.file_path, MEMO):
        return await write_memo(context, arguments.file_path, arguments.content, name)
    check_writable(arguments.file_path)
    stat = await context.runner.write_file(arguments.file_path, arguments.content.encode())
    return ToolResult(
        ok=True,
        content=f"Wrote {stat.size_bytes} bytes to {stat.path}.",
        details={"path": stat.path, "size_bytes": stat.size_bytes},
    )
