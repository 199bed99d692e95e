"""Python: run code in a new interpreter, or in a context that keeps its variables."""

from __future__ import annotations

from contextlib import suppress

from pydantic import Field, model_validator

from sandboxd.contexts.contexts import create_context, run_code
from sandboxd.errors import ContextExists, ContextNotFound
from sandboxd.models.command import DEFAULT_TIMEOUT_S
from sandboxd.models.context import MAX_CODE_CHARS, ContextName, RunBody, RunResult
from sandboxd.models.paths import CleanText
from sandboxd.models.tool import ToolResult
from sandboxd.runner.calls import Exec
from sandboxd.runner.inside.container_paths import WORKSPACE
from sandboxd.tools.arguments import ToolArguments, ToolPath, also
from sandboxd.tools.commands import MAX_TIMEOUT_MS, render_result
from sandboxd.tools.context import ToolContext, ToolRunner
from sandboxd.tools.formats import ToolHints
from sandboxd.tools.run_result import render_run

name = "Python"
description = (
    "Run Python code in a new interpreter in the sandbox. Only printed output is returned, and no variables are kept "
    "between calls. With context, variables are kept, the value of the last expression is returned too, and figures "
    "are saved as files."
)

DEFAULT_CONTEXT = "default"

hints = ToolHints(title="Run Python code", open_world=True)


class Arguments(ToolArguments):
    aliases = also(
        code="script source python_code",
        working_directory="cwd workdir working_dir directory",
        timeout="timeout_ms",
    )

    code: CleanText = Field(min_length=1, description="The Python code to run.")
    working_directory: ToolPath = Field(
        default=WORKSPACE, description="The directory to run in. A relative path is relative to /workspace."
    )
    timeout: int = Field(
        default=int(DEFAULT_TIMEOUT_S * 1000),
        ge=1,
        le=MAX_TIMEOUT_MS,
        description="Milliseconds after which the code is killed; in a context it is interrupted, and variables stay.",
    )
    context: bool | ContextName = Field(
        default=False,
        description="true, or a name: run in a context of that name, which keeps variables and imports between calls. "
        "It is created on first use.",
    )

    @model_validator(mode="after")
    def _suits_a_context(self) -> Arguments:
        if self.context and self.working_directory != WORKSPACE:
            raise ValueError("working_directory has no effect in a context; call os.chdir in the code")
        if self.context and len(self.code) > MAX_CODE_CHARS:
            raise ValueError(
                f"code in a context must be at most {MAX_CODE_CHARS} characters long; write a module instead"
            )
        return self


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    if arguments.context is not False:
        chosen = DEFAULT_CONTEXT if arguments.context is True else arguments.context
        body = RunBody(code=arguments.code, timeout_s=arguments.timeout / 1000)
        result = await _run_in_context(context.runner, chosen, body)
        return await render_run(context.runner, chosen, result, body.timeout_s)
    # Through stdin, because an argument is limited to 128 KiB and visible in the process list.
    call = Exec(
        ("python3", "-"),
        cwd=arguments.working_directory,
        stdin=arguments.code.encode(),
        timeout_s=arguments.timeout / 1000,
    )
    return render_result(await context.runner.exec(call), call.timeout_s)


async def _run_in_context(runner: ToolRunner, chosen: str, body: RunBody) -> RunResult:
    """Run code in a context, which is created first if it does not exist."""
    try:
        return await run_code(runner, chosen, body)
    except ContextNotFound:
        with suppress(ContextExists):  # another call has just created it
            await create_context(runner, chosen)
        return await run_code(runner, chosen, body)
