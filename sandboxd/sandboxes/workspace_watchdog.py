"""The workspace limit on hosts without a quota: measured by the runner, enforced by killing the agent's processes.

A measurement is always late, so this is a fallback, which `doctor` reports as weak. It never opens a workspace itself.
A sandbox with calls is measured every two seconds, others twice a minute for their background processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import anyio
import structlog

from sandboxd.errors import SandboxError, WorkspaceFull
from sandboxd.runner.client import RunnerClient
from sandboxd.sandboxes.lifecycle import State
from sandboxd.sandboxes.sandbox import Sandbox
from sandboxd.workspace import is_over

_log = structlog.get_logger()

_BUSY_S = 2.0
_QUIET_S = 30.0


async def watch_workspaces(sandboxes: Callable[[], Iterable[Sandbox]]) -> None:
    measured_at: dict[str, float] = {}
    over_by: dict[str, int] = {}
    while True:
        now = time.monotonic()
        due = [sandbox for sandbox in sandboxes() if _is_due(sandbox, now, measured_at.get(sandbox.record.id, 0.0))]
        for sandbox in due:
            measured_at[sandbox.record.id] = now
            await _enforce(sandbox, over_by)
        known = {sandbox.record.id for sandbox in sandboxes()}
        measured_at = {sandbox_id: at for sandbox_id, at in measured_at.items() if sandbox_id in known}
        await anyio.sleep(_BUSY_S)


def _is_due(sandbox: Sandbox, now: float, measured_at: float) -> bool:
    if sandbox.record.state is not State.READY or sandbox.runner is None:
        return False
    return sandbox.idle_s(now) < 2 * _BUSY_S or now - measured_at >= _QUIET_S


async def _enforce(sandbox: Sandbox, over_by: dict[str, int]) -> None:
    """Kill processes in a workspace over its limit, and again only if it grew, so that files can be removed."""
    runner, sandbox_id = sandbox.runner, sandbox.record.id
    if runner is None:
        return
    try:
        usage = await runner.usage()
        if not is_over(usage.bytes_used, usage.inodes_used, sandbox.record.shape.limits.disk_mb):
            over_by.pop(sandbox_id, None)
            return
        size = usage.bytes_used + usage.inodes_used
        if size > over_by.get(sandbox_id, 0):
            await _end_writers(runner, sandbox.record.shape.limits.disk_mb)
            after = await runner.usage()  # what processes wrote while they were being killed is not growth
            over_by[sandbox_id] = max(size, after.bytes_used + after.inodes_used)
            _log.warning("workspace over its limit", sandbox=sandbox.record.id, bytes_used=usage.bytes_used)
    except SandboxError as error:
        _log.info("cannot measure a workspace", sandbox=sandbox.record.id, error=str(error))


async def _end_writers(runner: RunnerClient, disk_mb: int) -> None:
    for process in await runner.list_processes():
        if process.running:
            await runner.kill_process(process.id)
    full = f"cannot continue: the workspace is over its limit of {disk_mb} MB; remove files first"
    runner.interrupt(WorkspaceFull(full))
