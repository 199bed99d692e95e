"""Background processes as text for a model: their records, their output, and mistakes that name what runs."""

from __future__ import annotations

from collections.abc import Iterable

from sandboxd.errors import InvalidRequest, ProcessNotFound
from sandboxd.models.process import Process
from sandboxd.models.tool import ToolResult
from sandboxd.tools.context import ToolContext

_COMMAND_CHARS = 200


def state_of(process: Process) -> str:
    return "running" if process.running else f"ended with exit code {process.exit_code}"


def describe_processes(processes: Iterable[Process]) -> str:
    """Return one line for each process: its id, state, output and command."""
    lines = []
    for process in processes:
        command = " ".join(process.command.split())
        if len(command) > _COMMAND_CHARS:
            command = f"{command[:_COMMAND_CHARS]}..."
        lines.append(f"{process.id}: {state_of(process)}, {process.output_bytes} bytes of output: {command}")
    return "\n".join(lines) or "[no background processes]"


async def refuse(context: ToolContext, error: ProcessNotFound | InvalidRequest) -> ToolResult:
    """Return a model's mistake as a result that names the processes that run."""
    running = [process.id for process in await context.runner.list_processes() if process.running]
    names = f"running: {', '.join(running)}" if running else "no process is running"
    return ToolResult(ok=False, content=f"{error}; {names}", details={"code": error.code, "running": running})


def details_of(process: Process) -> dict[str, object]:
    return {"process_id": process.id, "running": process.running, "exit_code": process.exit_code}
