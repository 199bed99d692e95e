"""ProcessList: the background processes of the sandbox."""

from __future__ import annotations

from sandboxd.models.tool import ToolResult
from sandboxd.tools.arguments import ToolArguments
from sandboxd.tools.context import ToolContext, cut_for_model
from sandboxd.tools.formats import ToolHints
from sandboxd.tools.processes import describe_processes, details_of

name = "ProcessList"
description = "List the background processes of the sandbox: id, state, exit code, amount of output and command."

hints = ToolHints(title="List the processes", read_only=True)


class Arguments(ToolArguments):
    pass


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    processes = await context.runner.list_processes()
    text, _ = cut_for_model(describe_processes(processes))
    return ToolResult(ok=True, content=text, details={"items": [details_of(process) for process in processes]})
