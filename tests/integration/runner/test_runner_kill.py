"""Timeouts, fork bombs and memory hogs: the whole tree is dead before the answer, and the next call works."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.errors import LimitReached
from sandboxd.runner.calls import CommandResult, Exec
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


DETACHED = """
import ctypes, os, resource, sys, threading, time
def detach():
    if os.fork():
        time.sleep(4321)
    os.setsid()
    if os.fork():
        os._exit(0)
"""
HIDING = {
    "environment of a live call": """
detach()
with open(f"/proc/{sys.argv[1]}/environ", "rb") as file:
    entries = [entry.partition(b"=") for entry in file.read().split(b"\\0") if entry]
os.execve("/usr/bin/sleep", ["sleep", "4321"], {name: value for name, _, value in entries})
""",
    "limits of a live call": """
detach()
for number in range(16):
    for wanted in (resource.prlimit(int(sys.argv[1]), number), (0, 0), (7, 7)):
        try:
            resource.setrlimit(number, wanted)
        except (OSError, ValueError):
            pass
os.execve("/usr/bin/sleep", ["sleep", "4321"], {})
""",
    "first thread has ended": """
detach()
threading.Thread(target=time.sleep, args=(4321,)).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
""",
}
HOPPING = """
detach()
os.chdir("/tmp")
beat = os.open("beat", os.O_CREAT | os.O_WRONLY)
while True:
    os.write(beat, b"x")
    if os.fork():
        os._exit(0)
    os.setsid()
"""
SCRUBBED_BOMB = """#!/bin/bash
echo x >> /tmp/beat
setsid env -i /bin/bash /workspace/bomb & disown
setsid env -i /bin/bash /workspace/bomb & disown
"""


async def run(runner: RunnerClient, command: str | tuple[str, ...], **options: object) -> CommandResult:
    with anyio.fail_after(HANG_S):
        return await runner.exec(Exec(command, **options))  # type: ignore[arg-type]


async def living(runner: RunnerClient) -> list[str]:
    """Return the command lines of all processes except the runner and the one that lists them."""
    result = await run(runner, ("ps", "-eo", "pid=,args="))
    lines = [line.split(None, 1) for line in result.stdout.decode().splitlines()]
    return [args for pid, args in lines if pid != "1" and not args.startswith("ps -eo")]


async def test_a_timeout_keeps_the_output_and_has_no_exit_code(runner: RunnerClient) -> None:
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
    results: list[CommandResult] = []

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


async def start_neighbour(runner: RunnerClient) -> tuple[str, str]:
    """Start a background process that counts; return its id and its pid in the sandbox."""
    process = await runner.start_process(Exec("echo $$; while true; do sleep 0.05; echo beat; done"))
    output = await runner.read_process(process.id, wait_s=HANG_S)
    return process.id, output.data.split()[0].decode()


async def end_neighbour(runner: RunnerClient, process: str) -> None:
    """Check that it still runs, then kill it; afterwards nothing else may run."""
    end = (await runner.read_process(process)).next_offset
    with anyio.fail_after(HANG_S):
        assert b"beat" in (await runner.read_process(process, end, wait_s=HANG_S)).data
    assert (await runner.kill_process(process)).exit_code == 137
    assert await living(runner) == []


async def count_beats(runner: RunnerClient) -> int:
    return int((await run(runner, "sleep 0.3; stat -c %s /tmp/beat")).stdout)


@pytest.mark.parametrize("trick", HIDING)
async def test_a_process_cannot_pretend_to_belong_to_another_call(runner: RunnerClient, trick: str) -> None:
    process, number = await start_neighbour(runner)
    result = await run(runner, ("python3", "-c", DETACHED + HIDING[trick], number), timeout_s=1)
    assert result.timed_out
    left = await living(runner)
    assert [line for line in left if "4321" in line or "DETACHED" in line or "python3" in line] == []
    await end_neighbour(runner, process)


async def test_a_process_that_constantly_forks_and_exits_is_dead_at_the_timeout(runner: RunnerClient) -> None:
    process, number = await start_neighbour(runner)
    for _ in range(3):
        result = await run(runner, ("env", "-i", "python3", "-c", DETACHED + HOPPING, number), timeout_s=0.5)
        assert result.timed_out
        beats = await count_beats(runner)
        assert beats > 10
        assert await count_beats(runner) == beats
        await run(runner, "rm /tmp/beat")
    await end_neighbour(runner, process)


async def test_a_bomb_that_scrubs_its_environment_is_dead_at_the_timeout_and_its_neighbour_is_not(
    runner: RunnerClient,
) -> None:
    process, _number = await start_neighbour(runner)
    await runner.write_file("/workspace/bomb", SCRUBBED_BOMB.encode())
    result = await run(runner, "bash bomb; sleep 100", timeout_s=2)
    assert result.timed_out
    beats = await count_beats(runner)
    assert await count_beats(runner) == beats
    await run(runner, "rm /tmp/beat")
    await end_neighbour(runner, process)


async def test_killing_a_background_process_kills_its_detached_children(runner: RunnerClient) -> None:
    process, number = await start_neighbour(runner)
    script = DETACHED + HIDING["environment of a live call"]
    hidden = await runner.start_process(Exec(("python3", "-c", script, number)))
    await run(runner, "until pgrep -f 'sleep 432[1]'; do sleep 0.05; done")
    await runner.kill_process(hidden.id)
    assert [line for line in await living(runner) if "4321" in line] == []
    await end_neighbour(runner, process)


@pytest.mark.parametrize(
    "bomb",
    [
        ":(){ :|:& };:; sleep 100",
        "python3 -c 'import os\nwhile True:\n try:\n  os.fork() or os.setsid()\n except OSError: pass'",
    ],
    ids=["shell", "a new session for each child"],
)
async def test_a_fork_bomb_is_reported_and_the_next_call_answers(runner: RunnerClient, bomb: str) -> None:
    result = await run(runner, bomb, timeout_s=3)
    assert result.timed_out
    assert result.limits_hit == ("pids",)
    after = await run(runner, ("echo", "still here"))
    assert after.stdout == b"still here\n"
    assert after.limits_hit == ()
    assert await living(runner) == []


async def test_during_a_fork_bomb_other_calls_get_a_clear_error(runner: RunnerClient) -> None:
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


async def test_a_memory_hog_is_killed_and_reported_and_the_next_call_answers(runner: RunnerClient) -> None:
    result = await run(runner, ("python3", "-c", "x = bytearray(1 << 30); print(len(x))"), timeout_s=30)
    assert result.exit_code == 137
    assert result.limits_hit == ("memory",)
    assert (await run(runner, ("true",))).limits_hit == ()
