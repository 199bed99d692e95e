"""Python: run code in a new interpreter."""

from __future__ import annotations

from pydantic import Field

from sandboxd.models.command import DEFAULT_TIMEOUT_S
from sandboxd.models.paths import CleanText, SandboxPath
from sandboxd.models.tool import ToolResult
from sandboxd.runner.calls import Exec
from sandboxd.runner.inside.container_paths import WORKSPACE
from sandboxd.tools.commands import MAX_TIMEOUT_MS, render_result
from sandboxd.tools.context import ToolArguments, ToolContext

name = "Python"
description = (
    "Run Python code in a new interpreter in the sandbox. Only printed output is returned; no variables are kept "
    "between calls."
)


class Arguments(ToolArguments):
    code: CleanText = Field(min_length=1, description="The Python code to run.")
    working_directory: SandboxPath = Field(default=WORKSPACE, description="Absolute path of the directory to run in.")
    timeout: int = Field(
        default=int(DEFAULT_TIMEOUT_S * 1000),
        ge=1,
        le=MAX_TIMEOUT_MS,
        description="Milliseconds after which the code is killed.",
    )


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    # Through stdin, because an argument is limited to 128 KiB and visible in the process list.
    call = Exec(
        ("python3", "-"),
        cwd=arguments.working_directory,
        stdin=arguments.code.encode(),
        timeout_s=arguments.timeout / 1000,
    )
    return render_result(await context.runner.exec(call), call.timeout_s)
