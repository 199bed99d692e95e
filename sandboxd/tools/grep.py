"""Grep: find lines, files or counts that match a regular expression."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sandboxd.errors import SandboxError
from sandboxd.models.paths import CleanText
from sandboxd.models.tool import ToolResult
from sandboxd.runner.calls import Grep
from sandboxd.runner.inside.container_paths import WORKSPACE
from sandboxd.tools.arguments import ToolArguments, ToolPath, also
from sandboxd.tools.context import ToolContext, cut_for_model
from sandboxd.tools.formats import ToolHints

name = "Grep"
description = (
    "Search files in the sandbox with a regular expression. output_mode selects the result: paths of matching files "
    "(files_with_matches, the default), matching lines (content) or the number of matches in each file (count)."
)

hints = ToolHints(title="Search in files", read_only=True)


class Arguments(ToolArguments):
    aliases = also(
        pattern="query regex",
        path="directory dir file_path cwd",
        glob="include",
        case_insensitive="-i ignore_case",
    )
    unused = frozenset({"-n"})  # lines are always numbered

    pattern: CleanText = Field(min_length=1, max_length=65_536, description="A regular expression in ripgrep syntax.")
    path: ToolPath = Field(
        default=WORKSPACE,
        description="The file or directory to search. A relative path is relative to /workspace.",
    )
    glob: CleanText | None = Field(
        default=None, min_length=1, max_length=4096, description="Only files whose name matches, such as `*.py`."
    )
    output_mode: Literal["content", "files_with_matches", "count"] = Field(
        default="files_with_matches", description="What to return."
    )
    case_insensitive: bool = Field(default=False, description="Ignore case.")
    multiline: bool = Field(default=False, description="Let the pattern match across lines.")


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    call = Grep(
        arguments.pattern,
        path=arguments.path,
        glob=arguments.glob,
        output_mode=arguments.output_mode,
        case_insensitive=arguments.case_insensitive,
        multiline=arguments.multiline,
    )
    try:
        found = await context.runner.grep(call)
    except SandboxError as error:
        if not str(error).startswith("cannot finish the search"):  # the sandbox itself failed
            raise
        content = f"{error}; use a simpler pattern, or name a smaller path or a glob"
        return ToolResult(ok=False, content=content, details={"code": error.code})
    text, left_out = cut_for_model(found.text.removesuffix("\n"))
    if found.truncated:
        text += "\n[there are more matches than shown; use a narrower pattern or path]"
    details = {"matched": found.matched, "truncated": found.truncated or left_out > 0}
    return ToolResult(ok=True, content=text if found.matched else "[no matches]", details=details)
