"""The result of a command as text for a model: its output, then notes on how it ended."""

from __future__ import annotations

from sandboxd.models.command import MAX_TIMEOUT_S
from sandboxd.models.tool import ToolResult
from sandboxd.runner.calls import CommandResult
from sandboxd.tools.context import cut_for_model

MAX_TIMEOUT_MS = int(MAX_TIMEOUT_S * 1000)
MAX_COMMAND_BYTES = 131_000
"""The kernel refuses an argument of 128 KiB or more."""

_LIMIT_NOTES = {
    "memory": "[the sandbox reached its memory limit and the kernel killed a process]",
    "pids": "[the sandbox reached its process limit; new processes could not start]",
    "workspace": "[the workspace reached its limit: no room for more bytes or files, or a file grew larger than the "
    "limit; remove files you do not need]",
    "tmp": "[/tmp is full: no room for more bytes or files; remove files there or use /var/tmp]",
}


def render_result(result: CommandResult, timeout_s: float) -> ToolResult:
    parts = []
    left_out = 0
    for raw in (result.stdout, result.stderr):
        text, cut = cut_for_model(raw.decode("utf-8", "replace"))
        left_out += cut
        if text:
            parts.append(text.removesuffix("\n"))
    if result.truncated:
        parts.append("[output exceeded the limit; the rest was discarded]")
    parts.extend(_LIMIT_NOTES[limit] for limit in result.limits_hit)
    if result.timed_out:
        parts.append(f"[timed out after {timeout_s:g} s; the command and every process it started were killed]")
    elif result.exit_code != 0:
        parts.append(f"[exit code {result.exit_code}]")
    ok = result.exit_code == 0 and not result.timed_out
    details = {
        "exit_code": result.exit_code,
        "timed_out": result.timed_out,
        "truncated": result.truncated or left_out > 0,
        "duration_ms": result.duration_ms,
        "limits_hit": list(result.limits_hit),
    }
    return ToolResult(ok=ok, content="\n".join(parts) or "[no output]", details=details)
