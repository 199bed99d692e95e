"""Edit: replace exact text in a file; under the memo path in the store, anywhere else in the container."""

from __future__ import annotations

from functools import partial

import anyio.to_thread
from pydantic import Field

from sandboxd.errors import FileNotFound, InvalidRequest
from sandboxd.models.paths import is_under
from sandboxd.models.tool import ToolResult
from sandboxd.runner.inside.container_paths import MEMO
from sandboxd.runner.inside.edit_rules import NO_MATCH, lines_of_matches, why_no_edit, why_no_match
from sandboxd.tools.arguments import ToolArguments, ToolPath, also
from sandboxd.tools.context import ToolContext, ToolRunner, check_writable
from sandboxd.tools.formats import ToolHints
from sandboxd.tools.memory import edit_memo
from sandboxd.tools.missing_files import with_suggestions
from sandboxd.tools.nearest_lines import MAX_TEXT_CHARS, explain_mismatch

name = "Edit"
description = (
    "Replace old_string with new_string in a file of the sandbox. old_string must match exactly once, unless "
    "replace_all is true. An empty old_string creates a new file. A file under /workspace/memo is shared memory that "
    "others also change: if old_string was in the file when you read it but no longer is, nothing is written and the "
    "newer text is returned."
)

hints = ToolHints(title="Edit a file")

_SLICE_LINES = 20_000


class NoMatch(InvalidRequest):
    """The text to replace is not in `text`, which is not part of the message: errors never show documents."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class Arguments(ToolArguments):
    aliases = also(
        file_path="path file filename",
        old_string="old_str old_text old search",
        new_string="new_str new_text new replace replacement",
    )

    file_path: ToolPath = Field(
        min_length=1, description="The path of the file. A relative path is relative to /workspace."
    )
    old_string: str = Field(
        description="The exact text to replace, including whitespace, without the line numbers that Read shows."
    )
    new_string: str = Field(description="The replacement text.")
    replace_all: bool = Field(default=False, description="Replace every occurrence.")


def writes_memory(arguments: Arguments) -> bool:
    return is_under(arguments.file_path, MEMO)


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    path = arguments.file_path
    try:
        if is_under(path, MEMO):
            return await edit_memo(context, path, partial(replace, arguments), name, creates=not arguments.old_string)
        return await _edit_file(context.runner, arguments)
    except NoMatch as error:
        return await _not_found(error, error.text, arguments)
    except InvalidRequest as error:
        if NO_MATCH not in str(error):
            raise
        return await _not_found(error, await _text_of(context.runner, path), arguments)
    except FileNotFound as error:
        raise await with_suggestions(context.runner, error, path) from None


def replace(arguments: Arguments, text: str) -> tuple[str, str]:
    """Apply the edit by the rules that the runner uses for a workspace file."""
    path, old, new = arguments.file_path, arguments.old_string, arguments.new_string
    if not old and new:
        if text:
            raise _exists(path)
        return new, f"Created {path}."
    if (reason := why_no_edit(path, old, new)) is not None:
        raise InvalidRequest(reason)
    found = text.count(old)
    reason = why_no_match(path, found, arguments.replace_all, lines_of_matches(text, old) if found > 1 else ())
    if reason is not None:
        raise InvalidRequest(reason) if found else NoMatch(reason, text)
    return text.replace(old, new), _sentence(path, found)


async def _edit_file(runner: ToolRunner, arguments: Arguments) -> ToolResult:
    path, old, new = arguments.file_path, arguments.old_string, arguments.new_string
    check_writable(path)
    if not old and new:
        return await _create(runner, path, new)
    edited = await runner.edit_file(path, old, new, replace_all=arguments.replace_all)
    details = {"path": path, "replacements": edited.replacements, "size_bytes": edited.size_bytes}
    return ToolResult(ok=True, content=_sentence(path, edited.replacements), details=details)


async def _create(runner: ToolRunner, path: str, text: str) -> ToolResult:
    """Write a new file, or an empty one; a file with text is never replaced this way."""
    try:
        is_empty = (await runner.read_text(path, 1, 1)).total_lines == 0
    except FileNotFound:
        is_empty = True
    if not is_empty:
        raise _exists(path)
    stat = await runner.write_file(path, text.encode())
    details = {"path": path, "replacements": 1, "size_bytes": stat.size_bytes}
    return ToolResult(ok=True, content=f"Created {path}.", details=details)


def _exists(path: str) -> InvalidRequest:
    return InvalidRequest(
        f"cannot create {path}: it exists and is not empty; set old_string to the text to replace, or replace the "
        "whole file with Write"
    )


async def _text_of(runner: ToolRunner, path: str) -> str:
    """Return the beginning of a file, as much as is compared."""
    lines: list[str] = []
    size, total = 0, 1
    while size < MAX_TEXT_CHARS and len(lines) < min(total, _SLICE_LINES):
        part = await runner.read_text(path, len(lines) + 1, _SLICE_LINES)
        if not part.lines:
            break
        lines.extend(part.lines)
        size += sum(map(len, part.lines))
        total = part.total_lines
    return "\n".join(lines)


async def _not_found(error: InvalidRequest, text: str, arguments: Arguments) -> ToolResult:
    # In a thread, because the comparison may take some milliseconds.
    nearest = await anyio.to_thread.run_sync(explain_mismatch, text, arguments.old_string)
    details = {"path": arguments.file_path, "code": error.code}
    return ToolResult(ok=False, content=f"{error}. Nothing was changed.\n{nearest}", details=details)


def _sentence(path: str, replacements: int) -> str:
    return f"Replaced {'once' if replacements == 1 else f'{replacements} times'} in {path}."
