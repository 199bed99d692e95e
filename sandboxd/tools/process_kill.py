"""ProcessKill: end a background process and everything it started."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sandboxd.errors import InvalidRequest, ProcessNotFound
from sandboxd.models.tool import ToolResult
from sandboxd.tools.arguments import ToolArguments, also
from sandboxd.tools.context import ToolContext
from sandboxd.tools.formats import ToolHints
from sandboxd.tools.processes import details_of, refuse, state_of

name = "ProcessKill"
description = (
    "End a background process and everything it started. With a signal other than KILL, all of them get it first, and "
    "those that are left after 5 seconds are killed."
)

GRACE_S = 5.0

hints = ToolHints(title="End a process", idempotent=True)


class Arguments(ToolArguments):
    aliases = also(process="process_id id bash_id shell_id task_id pid")

    process: str = Field(min_length=1, max_length=64, description="The id of the process, such as p1.")
    signal: Literal["KILL", "TERM", "INT", "HUP", "QUIT"] = Field(default="KILL", description="The signal to send.")


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    try:
        before = (await context.runner.read_process(arguments.process, 0, 0)).process
        killed = await context.runner.kill_process(arguments.process, arguments.signal, GRACE_S)
    except (ProcessNotFound, InvalidRequest) as error:
        return await refuse(context, error)
    if not before.running:
        left = f"cannot end {before.id}: it has already {state_of(before)}, and anything it left running was killed"
        return await refuse(context, InvalidRequest(left))
    details = {**details_of(killed), "ended_by": killed.ended_by}
    content = f"{killed.id} was ended by {killed.ended_by} and {state_of(killed)}."
    return ToolResult(ok=True, content=content, details=details)
