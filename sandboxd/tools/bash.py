"""Bash: run a shell command, to its end or in the background."""

from __future__ import annotations

import shlex
from typing import Any

from pydantic import Field, field_validator

from sandboxd.models.command import DEFAULT_TIMEOUT_S
from sandboxd.models.paths import CleanText
from sandboxd.models.tool import ToolResult
from sandboxd.runner.calls import Exec
from sandboxd.runner.inside.container_paths import WORKSPACE
from sandboxd.tools.arguments import ToolArguments, ToolPath, also
from sandboxd.tools.commands import MAX_COMMAND_BYTES, MAX_TIMEOUT_MS, render_result
from sandboxd.tools.context import ToolContext
from sandboxd.tools.formats import ToolHints

name = "Bash"
description = (
    "Run a shell command in the sandbox. Every call starts a new shell. Returns stdout, then stderr, then the exit "
    "code if it is not 0. With run_in_background, returns a process id at once while the command keeps running; read "
    "its output with ProcessOutput."
)

hints = ToolHints(title="Run a shell command", open_world=True)


class Arguments(ToolArguments):
    aliases = also(
        command="cmd script",
        working_directory="cwd workdir working_dir directory",
        run_in_background="background is_background",
        timeout="timeout_ms",
    )
    unused = frozenset({"dangerouslyDisableSandbox", "security_risk"})

    command: CleanText = Field(min_length=1, description="The command, run by bash.")
    description: str | None = Field(
        default=None, description="What the command does, in a few words. It has no effect."
    )
    working_directory: ToolPath = Field(
        default=WORKSPACE, description="The directory to run in. A relative path is relative to /workspace."
    )
    timeout: int = Field(
        default=int(DEFAULT_TIMEOUT_S * 1000),
        ge=1,
        le=MAX_TIMEOUT_MS,
        description="Milliseconds after which the command is killed.",
    )
    run_in_background: bool = Field(default=False, description="Return at once and keep the command running.")

    @field_validator("command", mode="before")
    @classmethod
    def _joined(cls, command: Any) -> Any:
        """Accept a list of words, as some agents send it."""
        is_words = isinstance(command, list) and command and all(isinstance(word, str) for word in command)
        return shlex.join(command) if is_words else command

    @field_validator("command")
    @classmethod
    def _fits_the_kernel(cls, command: str) -> str:
        if len(command.encode()) > MAX_COMMAND_BYTES:
            raise ValueError(
                f"must be at most {MAX_COMMAND_BYTES} bytes long; write a script to a file and run the file"
            )
        return command


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    call = Exec(arguments.command, cwd=arguments.working_directory, timeout_s=arguments.timeout / 1000)
    if arguments.run_in_background:
        process = await context.runner.start_process(call)
        content = (
            f"Started in the background as process {process.id}: read it with ProcessOutput, write with ProcessInput, "
            "end it with ProcessKill."
        )
        return ToolResult(ok=True, content=content, details={"process_id": process.id})
    return render_result(await context.runner.exec(call), call.timeout_s)
