"""Grep: find lines, files or counts that match a regular expression."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sandboxd.models.paths import CleanText, SandboxPath
from sandboxd.models.tool import ToolResult
from sandboxd.runner.calls import Grep
from sandboxd.runner.inside.container_paths import WORKSPACE
from sandboxd.tools.context import ToolArguments, ToolContext, cut_for_model

name = "Grep"
description = (
    "Search files in the sandbox with a regular expression. output_mode selects the result: paths of matching files "
    "(files_with_matches, the default), matching lines (content) or the number of matches in each file (count)."
)


class Arguments(ToolArguments):
    pattern: CleanText = Field(min_length=1, max_length=65_536, description="A regular expression in ripgrep syntax.")
    path: SandboxPath = Field(default=WORKSPACE, description="Absolute path of the file or directory to search.")
    glob: CleanText | None = Field(
        default=None, min_length=1, max_length=4096, description="Only files whose name matches, such as `*.py`."
    )
    output_mode: Literal["content", "files_with_matches", "count"] = Field(
        default="files_with_matches", description="What to return."
    )
    case_insensitive: bool = Field(default=False, description="Ignore case.")
    multiline: bool = Field(default=False, description="Let the pattern match across lines.")


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    found = await context.runner.grep(
        Grep(
            arguments.pattern,
            path=arguments.path,
            glob=arguments.glob,
            output_mode=arguments.output_mode,
            case_insensitive=arguments.case_insensitive,
            multiline=arguments.multiline,
        )
    )
    text, left_out = cut_for_model(found.text.removesuffix("\n"))
    if found.truncated:
        text += "\n[there are more matches than shown; use a narrower pattern or path]"
    details = {"matched": found.matched, "truncated": found.truncated or left_out > 0}
    return ToolResult(ok=True, content=text if found.matched else "[no matches]", details=details)
