"""Edit: replace an exact piece of text in a file."""

from __future__ import annotations

from pydantic import Field

from sandboxd.tools.context import SandboxPath, ToolArguments, ToolContext, ToolResult, refuse_write

name = "Edit"
description = (
    "Replace old_string by new_string in a file of the sandbox. old_string must be there exactly once, "
    "unless replace_all is true."
)


class Arguments(ToolArguments):
    file_path: SandboxPath = Field(description="Absolute path of the file.")
    old_string: str = Field(description="The exact text to replace, with its whitespace.")
    new_string: str = Field(description="The text to put there.")
    replace_all: bool = Field(default=False, description="Replace every occurrence.")


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    if (refusal := refuse_write(arguments.file_path)) is not None:
        return refusal
    edited = await context.runner.edit_file(
        arguments.file_path, arguments.old_string, arguments.new_string, replace_all=arguments.replace_all
    )
    times = "once" if edited.replacements == 1 else f"{edited.replacements} times"
    return ToolResult(
        True,
        f"Replaced {times} in {arguments.file_path}.",
        {"path": arguments.file_path, "replacements": edited.replacements, "size_bytes": edited.size_bytes},
    )
