"""Timeouts, fork bombs and memory hogs: the whole tree is dead before the answer, and the next call works."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.errors import LimitReached
from sandboxd.runner.calls import Exec, ExecResult
from sandboxd.runner.client import RunnerClient
from tests.integration.runner.box import HANG_S

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

DAEMON = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork():
    time.sleep(4321)
os.setsid()
if os.fork():
    os._exit(0)
if sys.argv[1] == "clear":
    os.execve("/usr/bin/sleep", ["sleep", "4321"], {})
time.sleep(4321)
"""


async def run(runner: RunnerClient, command: str | tuple[str, ...], **options: object) -> ExecResult:
    with anyio.fail_after(HANG_S):
        return await runner.exec(Exec(command, **options))  # type: ignore[arg-type]


async def living(runner: RunnerClient) -> list[str]:
    """Return the command lines of all processes but the runner and the one that looks."""
    result = await run(runner, ("ps", "-eo", "pid=,args="))
    lines = [line.split(None, 1) for line in result.stdout.decode().splitlines()]
    return [args for pid, args in lines if pid != "1" and not args.startswith("ps -eo")]


async def test_a_timeout_keeps_what_was_written_and_has_no_exit_code(runner: RunnerClient) -> None:
    result = await run(runner, "echo partial; trap '' TERM; sleep 4321", timeout_s=0.5)
    assert (result.exit_code, result.timed_out, result.stdout) == (None, True, b"partial\n")
    assert await living(runner) == []


@pytest.mark.parametrize("kind", ["keep", "clear"])
async def test_a_double_forked_daemon_that_ignores_signals_is_dead_at_the_timeout(
    runner: RunnerClient, kind: str
) -> None:
    result = await run(runner, ("python3", "-c", DAEMON, kind), timeout_s=1)
    assert result.timed_out
    assert await living(runner) == []


async def test_a_pipeline_in_the_background_is_dead_at_the_timeout(runner: RunnerClient) -> None:
    await run(runner, "yes > /dev/null & (setsid nohup sleep 4321 &) ; cat /dev/zero | tail -c 1 & wait", timeout_s=1)
    assert await living(runner) == []


async def test_a_timeout_spares_other_calls_and_background_processes(runner: RunnerClient) -> None:
    process = await runner.start_process(Exec("while true; do sleep 0.1; done"))
    results: list[ExecResult] = []

    async def other() -> None:
        results.append(await run(runner, "for i in $(seq 20); do sleep 0.1; done; echo alive"))

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        assert (await run(runner, ("python3", "-c", DAEMON, "clear"), timeout_s=0.7)).timed_out
    assert results[0].stdout == b"alive\n"
    assert (await runner.read_process(process.id)).process.running
    killed = await runner.kill_process(process.id)
    assert (killed.running, killed.exit_code) == (False, 137)
    assert await living(runner) == []


@pytest.mark.parametrize(
    "bomb",
    [
        ":(){ :|:& };:; sleep 100",
        "python3 -c 'import os\nwhile True:\n try:\n  os.fork() or os.setsid()\n except OSError: pass'",
    ],
    ids=["shell", "a new session for each child"],
)
async def test_a_fork_bomb_is_named_and_the_next_call_answers(runner: RunnerClient, bomb: str) -> None:
    result = await run(runner, bomb, timeout_s=3)
    assert result.timed_out
    assert result.limits_hit == ("pids",)
    after = await run(runner, ("echo", "still here"))
    assert after.stdout == b"still here\n"
    assert after.limits_hit == ()
    assert await living(runner) == []


async def test_a_fork_bomb_refuses_others_clearly_and_only_while_it_lasts(runner: RunnerClient) -> None:
    async def bomb() -> None:
        await run(runner, ":(){ :|:& };:; sleep 100", timeout_s=3)

    outcomes: set[str] = set()
    async with anyio.create_task_group() as group:
        group.start_soon(bomb)
        for _ in range(10):
            try:
                outcomes.add(str((await run(runner, ("true",))).exit_code))
            except LimitReached:
                outcomes.add("refused")
            await anyio.sleep(0.1)
    assert outcomes <= {"0", "127", "137", "refused"}
    assert (await run(runner, ("true",))).exit_code == 0


async def test_a_memory_hog_is_killed_and_named_and_the_next_call_answers(runner: RunnerClient) -> None:
    result = await run(runner, ("python3", "-c", "x = bytearray(1 << 30); print(len(x))"), timeout_s=30)
    assert result.exit_code == 137
    assert result.limits_hit == ("memory",)
    assert (await run(runner, ("true",))).limits_hit == ()
