"""Edit: replace exact text in a file; under the memo path in the store, anywhere else in the container."""

from __future__ import annotations

from functools import partial

from pydantic import Field

from sandboxd.errors import InvalidRequest
from sandboxd.models.paths import SandboxPath, is_under
from sandboxd.models.tool import ToolResult
from sandboxd.runner.inside.container_paths import MEMO
from sandboxd.runner.inside.edit_rules import why_no_edit, why_no_match
from sandboxd.tools.context import ToolArguments, ToolContext, check_writable
from sandboxd.tools.memory import edit_memo

name = "Edit"
description = (
    "Replace old_string with new_string in a file of the sandbox. old_string must match exactly once, unless "
    "replace_all is true. A file under /workspace/memo is shared memory that others also change: if old_string was in "
    "the file when you read it but no longer is, nothing is written and the newer text is returned."
)


class Arguments(ToolArguments):
    file_path: SandboxPath = Field(description="Absolute path of the file.")
    old_string: str = Field(description="The exact text to replace, including whitespace.")
    new_string: str = Field(description="The replacement text.")
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
    return ToolResult(ok=True, content=_sentence(path, edited.replacements), details=details)


def replace(arguments: Arguments, text: str) -> tuple[str, str]:
    """Apply the edit by the rules that the runner uses for a workspace file."""
    path, old, new = arguments.file_path, arguments.old_string, arguments.new_string
    found = 0
    reason = why_no_edit(path, old, new)
    if reason is None:
        found = text.count(old)
        reason = why_no_match(path, found, arguments.replace_all)
    if reason is not None:
        raise InvalidRequest(reason)
    return text.replace(old, new), _sentence(path, found)


def _sentence(path: str, replacements: int) -> str:
    return f"Replaced {'once' if replacements == 1 else f'{replacements} times'} in {path}."
