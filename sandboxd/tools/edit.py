"""Edit: replace an exact piece of text in a file; a memo path in the store, anything else in the container."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from sandboxd.errors import InvalidRequest
from sandboxd.tools.context import MEMO, SandboxPath, ToolArguments, ToolContext, ToolResult, check_writable, is_under
from sandboxd.tools.memory import edit_memo

name = "Edit"
description = (
    "Replace old_string by new_string in a file of the sandbox. old_string must be there exactly once, "
    "unless replace_all is true. A file under /workspace/memo is memory, which others change, too: if old_string was "
    "there when you read the file and is not any more, nothing is written and the newer text is returned."
)


class Arguments(ToolArguments):
    file_path: SandboxPath = Field(description="Absolute path of the file.")
    old_string: str = Field(description="The exact text to replace, with its whitespace.")
    new_string: str = Field(description="The text to put there.")
    replace_all: bool = Field(default=False, description="Replace every occurrence.")


def writes_memory(arguments: Arguments) -> bool:
    return is_under(arguments.file_path, MEMO)


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    path = arguments.file_path
    if is_under(path, MEMO):
        return await edit_memo(context, path, partial(replace, arguments), name)
    check_writable(path)
    edited = await context.runner.edit_file(
        path, arguments.old_string, arguments.new_string, replace_all=arguments.replace_all
    )
    details = {"path": path, "replacements": edited.replacements, "size_bytes": edited.size_bytes}
    return ToolResult(True, _sentence(path, edited.replacements), details)


def replace(arguments: Arguments, text: str) -> tuple[str, str]:
    """The same rules as the runner's for a file of the workspace."""
    path, old, new = arguments.file_path, arguments.old_string, arguments.new_string
    if not old:
        raise InvalidRequest(f"cannot edit {path}: the text to replace is empty")
    if old == new:
        raise InvalidRequest(f"cannot edit {path}: the new text equals the old text")
    found = text.count(old)
    if found == 0:
        raise InvalidRequest(f"cannot edit {path}: the text to replace is not in the file")
    if found > 1 and not arguments.replace_all:
        raise InvalidRequest(f"cannot edit {path}: the text to replace is there {found} times, not once")
    return text.replace(old, new), _sentence(path, found)


def _sentence(path: str, replacements: int) -> str:
    return f"Replaced {'once' if replacements == 1 else f'{replacements} times'} in {path}."
