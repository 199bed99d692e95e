"""Glob: find files by a path pattern."""

from __future__ import annotations

from pydantic import Field

from sandboxd.errors import InvalidRequest
from sandboxd.models.paths import CleanText, parse_path
from sandboxd.models.tool import ToolResult
from sandboxd.runner.inside.container_paths import WORKSPACE
from sandboxd.tools.arguments import ToolArguments, ToolPath, also
from sandboxd.tools.context import ToolContext
from sandboxd.tools.formats import ToolHints

name = "Glob"
description = (
    "Find files in the sandbox by a pattern such as `**/*.py` or `src/{a,b}*.ts`. Returns paths, newest first."
)

hints = ToolHints(title="Find files", read_only=True)


class Arguments(ToolArguments):
    aliases = also(pattern="glob glob_pattern query", path="directory dir root cwd")

    pattern: CleanText = Field(min_length=1, max_length=4096, description="The pattern, relative to path.")
    path: ToolPath = Field(
        default=WORKSPACE, description="The directory to search. A relative path is relative to /workspace."
    )


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    pattern, path = split_absolute(arguments.pattern, arguments.path)
    found = await context.runner.glob(pattern, path)
    text = "\n".join(found.paths) or f"[no file matches {arguments.pattern}]"
    if found.truncated:
        text += "\n[more files match than are listed; use a narrower pattern]"
    return ToolResult(ok=True, content=text, details={"count": len(found.paths), "truncated": found.truncated})


def split_absolute(pattern: str, path: str) -> tuple[str, str]:
    """Split an absolute pattern into a directory and a relative pattern; return a relative one unchanged."""
    segments = pattern.split("/")
    if ".." in segments:
        raise InvalidRequest("cannot use this pattern: it must not contain a `..` segment; set path instead")
    if not pattern.startswith("/"):
        return pattern, path
    literal = 1
    while literal < len(segments) - 1 and not any(char in segments[literal] for char in "*?[{"):
        literal += 1
    return "/".join(segments[literal:]), parse_path("/" + "/".join(segments[1:literal]))
