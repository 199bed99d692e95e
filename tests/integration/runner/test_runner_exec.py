"""Commands in a real container: what they see, what they return, and what is bounded."""

from __future__ import annotations

import hashlib
import resource
from typing import Any

import anyio
import pytest

from sandboxd.errors import (
    FileError,
    FileNotFound,
    InvalidRequest,
    LimitReached,
    NotADirectory,
    OutsideSandbox,
    PermissionDenied,
)
from sandboxd.models.command import ExecOutput
from sandboxd.runner.calls import CommandResult, Exec
from sandboxd.runner.client import RunnerClient
from tests.integration.runner.box import HANG_S, Box

pytestmark = [pytest.mark.anyio, pytest.mark.engine]


async def run(runner: RunnerClient, command: str | tuple[str, ...], **options: object) -> CommandResult:
    with anyio.fail_after(HANG_S):
        return await runner.exec(Exec(command, **options))  # type: ignore[arg-type]


async def test_a_command_returns_its_output_and_exit_code(runner: RunnerClient) -> None:
    result = await run(runner, "echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert not result.timed_out
    assert not result.truncated


async def test_a_death_by_signal_is_reported_as_in_a_shell(runner: RunnerClient) -> None:
    assert (await run(runner, ("sh", "-c", "kill -TERM $$"))).exit_code == 143


async def test_a_missing_program_is_a_result_and_not_an_error(runner: RunnerClient) -> None:
    result = await run(runner, ("no-such-program",))
    assert result.exit_code == 127
    assert b"no-such-program" in result.stderr
    assert (await run(runner, ("/etc/passwd",))).exit_code == 126
    assert (await run(runner, ("/workspace",))).exit_code == 126
    result = await run(runner, ("x" * 2_000_000,))
    assert (result.exit_code, result.stderr) == (127, b"x" * 1024 + b"...: command not found\n")


async def test_a_missing_directory_is_refused(runner: RunnerClient) -> None:
    await run(runner, "echo x > plain; mkdir -p shut; chmod 600 shut")
    refusals: list[tuple[str, type[FileError], str]] = [
        ("/workspace/none", FileNotFound, "cannot run in /workspace/none: no such directory"),
        ("/x", FileNotFound, "cannot run in /x: no such directory"),
        ("/workspace/plain", NotADirectory, "cannot run in /workspace/plain: it is not a directory"),
        ("/workspace/shut", PermissionDenied, "cannot run in /workspace/shut: permission denied"),
    ]
    for cwd, kind, message in refusals:
        with pytest.raises(kind, match=f"^{message}"):
            await run(runner, "true", cwd=cwd)
        with pytest.raises(kind, match=f"^{message}"):
            await runner.start_process(Exec("true", cwd=cwd))
    with pytest.raises(InvalidRequest):
        await run(runner, "true", cwd="relative")


@pytest.mark.parametrize("cwd", ["/", "/usr/bin", "/workspace/../etc", "/workspace/public"])
async def test_a_command_runs_in_any_directory_that_every_user_may_enter(runner: RunnerClient, cwd: str) -> None:
    await run(runner, "ln -sfn /usr/lib public")
    expected = (await run(runner, f"cd -P {cwd} && pwd")).stdout
    assert (await run(runner, ("/bin/pwd", "-P"), cwd=cwd)).stdout == expected


@pytest.mark.parametrize(
    "cwd", ["/proc/1/root", "/proc/self/cwd", "/proc", "/run", "/dev/shm", "/root", "/workspace/out"]
)
async def test_a_working_directory_follows_the_rules_of_paths(runner: RunnerClient, cwd: str) -> None:
    await run(runner, "ln -sfn /proc/self/root/tmp out")
    with pytest.raises((InvalidRequest, OutsideSandbox), match=r"^cannot run in .*: it leads "):
        await run(runner, ("pwd",), cwd=cwd)
    with pytest.raises((InvalidRequest, OutsideSandbox), match=r"^cannot run in .*: it leads "):
        await runner.start_process(Exec(("pwd",), cwd=cwd))


async def test_a_working_directory_may_be_reached_through_links_inside(runner: RunnerClient) -> None:
    await run(runner, "mkdir -p real; ln -sfn /workspace/real link")
    assert (await run(runner, ("/bin/pwd", "-P"), cwd="/workspace/link")).stdout == b"/workspace/real\n"
    assert (await run(runner, ("/bin/pwd", "-P"), cwd="/tmp")).stdout == b"/tmp\n"


async def test_a_command_that_the_kernel_cannot_run_is_refused(runner: RunnerClient) -> None:
    for command in (
        ("echo", "a\0b"),
        ("echo", "\udc80"),
        ("\0",),
        (),
        ("",),
        ("echo", "x" * 200_000),
        ("x" * 9_000_000,),
    ):
        with pytest.raises(InvalidRequest):
            await run(runner, command)
    with pytest.raises(InvalidRequest):
        await run(runner, "true", env={"A=B": "c"})
    assert (await run(runner, "true")).exit_code == 0


async def test_a_command_sees_three_descriptors_and_default_signals(runner: RunnerClient) -> None:
    result = await run(runner, ("python3", "-c", "import os; print(sorted(os.listdir('/proc/self/fd'))[:-1])"))
    assert result.stdout.strip() == b"['0', '1', '2']"
    assert (await run(runner, ("readlink", "/proc/self/fd/0"))).stdout == b"/dev/null\n"
    status = dict(
        line.split(":\t") for line in (await run(runner, ("cat", "/proc/self/status"))).stdout.decode().splitlines()
    )
    assert int(status["SigBlk"], 16) == 0
    assert int(status["SigIgn"], 16) & 0x7FFFFFFF == 0


async def test_the_environment_is_built_and_never_inherited(box: Box) -> None:
    async with box.connected({"CREATED": "1", "BOTH": "create"}) as runner:
        text = (await run(runner, ("env",), env={"CALL": "2", "BOTH": "call"})).stdout.decode()
        env = dict(line.split("=", 1) for line in text.splitlines())
        assert env.pop("PATH")
        assert env == {
            "HOME": "/workspace",
            "USER": "agent",
            "LOGNAME": "agent",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PWD": "/workspace",
            "CREATED": "1",
            "BOTH": "call",
            "CALL": "2",
        }
        await runner.configure({"CREATED": "3"})
        assert (await run(runner, ("printenv", "CREATED"))).stdout == b"3\n"


async def test_a_program_is_found_in_the_path_of_its_own_environment(runner: RunnerClient) -> None:
    await run(runner, "mkdir -p bin && printf '#!/bin/sh\\necho mine\\n' > bin/mine && chmod +x bin/mine")
    assert (await run(runner, ("mine",))).exit_code == 127
    assert (await run(runner, ("mine",), env={"PATH": "/workspace/bin:/bin"})).stdout == b"mine\n"


async def test_stdin_arrives_complete_and_ends(runner: RunnerClient) -> None:
    assert (await run(runner, ("cat",), stdin=b"hello")).stdout == b"hello"
    assert (await run(runner, ("cat",))).stdout == b""
    large = bytes(range(256)) * 16_384
    result = await run(runner, ("sha256sum",), stdin=large)
    assert result.stdout.split()[0].decode() == hashlib.sha256(large).hexdigest()


async def test_unread_stdin_does_not_block_the_call(runner: RunnerClient) -> None:
    assert (await run(runner, ("true",), stdin=b"x" * 4_000_000)).exit_code == 0


async def test_200_kilobytes_are_returned_complete(runner: RunnerClient) -> None:
    result = await run(runner, "head -c 200000 /dev/zero | tr '\\0' x; head -c 150000 /dev/zero | tr '\\0' y >&2")
    assert result.stdout == b"x" * 200_000
    assert result.stderr == b"y" * 150_000
    assert not result.truncated


async def test_output_is_bounded_exactly_and_the_rest_is_dropped(runner: RunnerClient) -> None:
    result = await run(runner, "head -c 100001 /dev/zero; echo done >&2", max_output_bytes=100_000)
    assert (len(result.stdout), result.stderr, result.truncated) == (100_000, b"done\n", True)
    result = await run(runner, "echo x", max_output_bytes=0)
    assert (result.stdout, result.truncated, result.exit_code) == (b"", True, 0)


async def test_commands_that_fill_the_connection_together_all_end(runner: RunnerClient) -> None:
    """A command that resumes, and finds that another has filled the connection again, waits for the next drain."""
    size = 6_000_000
    sizes = []

    async def one() -> None:
        command = f"head -c {size} /dev/zero | tee /dev/stderr"
        result = await run(runner, command, max_output_bytes=size)
        sizes.append((len(result.stdout), len(result.stderr)))

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(one)
    assert sizes == [(size, size)] * 6


async def test_two_gigabytes_of_output_do_not_increase_memory_use(runner: RunnerClient) -> None:
    await run(runner, "true")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await run(runner, "yes | head -c 2G", timeout_s=100, max_output_bytes=1_000_000)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert (result.exit_code, len(result.stdout), result.truncated) == (0, 1_000_000, True)
    assert grown_kib < 32_768
    rss = await run(runner, "grep VmHWM /proc/1/status")
    assert int(rss.stdout.split()[1]) < 64 * 1024


async def test_a_hundred_commands_run_at_once(runner: RunnerClient) -> None:
    answers: list[bytes] = []

    async def one(number: int) -> None:
        answers.append((await run(runner, ("sh", "-c", f"sleep 0.2; echo {number}"))).stdout)

    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(one, number)
    async with anyio.create_task_group() as group:
        for number in range(50, 100):
            group.start_soon(one, number)
    assert sorted(int(answer) for answer in answers) == list(range(100))


async def test_a_long_command_does_not_delay_a_short_one(runner: RunnerClient) -> None:
    order: list[str] = []

    async def slow(scope: anyio.CancelScope) -> None:
        with scope:
            await run(runner, "sleep 50")
        order.append("slow")

    async with anyio.create_task_group() as group:
        scope = anyio.CancelScope()
        group.start_soon(slow, scope)
        for _ in range(5):
            await run(runner, ("true",))
        order.append("short")
        scope.cancel()
    assert order == ["short", "slow"]


async def test_a_server_left_behind_neither_blocks_the_call_nor_dies_of_a_closed_pipe(runner: RunnerClient) -> None:
    result = await run(runner, "(for i in $(seq 200); do echo $i; sleep 0.01; done; echo ok > survived) & echo started")
    assert result.stdout.startswith(b"started\n") or b"started\n" in result.stdout
    assert result.exit_code == 0
    result = await run(runner, "until [ -s survived ]; do sleep 0.05; done; cat survived; rm survived", timeout_s=30)
    assert result.stdout == b"ok\n"


async def test_no_zombies_remain(runner: RunnerClient) -> None:
    await run(runner, "for i in 1 2 3 4 5; do (sleep 0.05 &) ; done; (sh -c 'sleep 0.1 & exec true') ")
    result = await run(runner, "sleep 0.5; grep -l '^State:.Z' /proc/[0-9]*/status")
    assert result.stdout == b""


async def test_a_stream_arrives_as_it_is_written_and_ends_with_the_result(runner: RunnerClient) -> None:
    seen: list[ExecOutput | CommandResult] = []
    script = "rm -f go; echo one; until [ -e go ]; do sleep 0.05; done; echo two >&2; exit 4"
    with anyio.fail_after(HANG_S):
        async with runner.stream(Exec(script)) as items:
            async for item in items:
                seen.append(item)
                if item == ExecOutput("stdout", b"one\n"):
                    await run(runner, ("touch", "go"))
    assert seen[:2] == [ExecOutput("stdout", b"one\n"), ExecOutput("stderr", b"two\n")]
    assert isinstance(seen[2], CommandResult)
    assert (seen[2].exit_code, seen[2].stdout, len(seen)) == (4, b"", 3)


async def test_a_slow_consumer_blocks_only_its_own_command(runner: RunnerClient) -> None:
    total = 0
    call = Exec("head -c 3000000 /dev/zero", timeout_s=100, max_output_bytes=16_000_000)
    with anyio.fail_after(HANG_S):
        async with runner.stream(call) as items:
            async for item in items:
                if isinstance(item, ExecOutput):
                    total += len(item.data)
                    assert (await run(runner, ("true",))).exit_code == 0
    assert total == 3_000_000


async def test_an_unread_stream_is_stopped_at_the_window(runner: RunnerClient) -> None:
    script = "import os\nfor i in range(100):\n os.write(1, b'x'*65536); open('/workspace/written','w').write(str(i))"
    async with runner.stream(Exec(("python3", "-c", script), timeout_s=50, max_output_bytes=16_000_000)):
        await run(runner, "until [ -s written ]; do sleep 0.05; done; sleep 0.5", timeout_s=20)
        assert int((await run(runner, "cat written; rm written")).stdout) < 12
    assert (await run(runner, "sleep 0.3; pgrep -f 65536")).exit_code == 1


async def test_cancelling_a_call_kills_its_tree(runner: RunnerClient) -> None:
    with anyio.move_on_after(0.5):
        await run(runner, "echo here > cancelled; setsid sleep 4321 & sleep 4321")
    result = await run(runner, "for i in $(seq 100); do pgrep -f 'sleep 432[1]' || exit 0; sleep 0.1; done; exit 1")
    assert result.exit_code == 0


async def test_too_many_concurrent_calls_are_refused_and_the_others_continue(runner: RunnerClient) -> None:
    codes: list[object] = []

    async def one() -> None:
        try:
            codes.append((await run(runner, ("sleep", "1"))).exit_code)
        except LimitReached as error:
            codes.append(str(error)[:6])

    async with anyio.create_task_group() as group:
        for _ in range(200):
            group.start_soon(one)
    assert set(codes) == {0, "cannot"}
    assert (await run(runner, ("true",))).exit_code == 0


async def test_merged_output_keeps_the_order_in_which_it_was_written(runner: RunnerClient) -> None:
    command = "for i in $(seq 200); do echo out $i; echo err $i >&2; done; exit 3"
    wanted = "".join(f"out {i}\nerr {i}\n" for i in range(1, 201)).encode()
    result = await run(runner, command, merge_stderr=True)
    assert (result.exit_code, result.stdout, result.stderr) == (3, wanted, b"")
    result = await run(runner, ("no-such-program",), merge_stderr=True)
    assert (result.exit_code, result.stdout, result.stderr) == (127, b"no-such-program: command not found\n", b"")
    async with runner.stream(Exec(command, merge_stderr=True)) as items:
        pieces = [item async for item in items if isinstance(item, ExecOutput)]
    assert {piece.stream for piece in pieces} == {"stdout"}
    assert b"".join(piece.data for piece in pieces) == wanted


async def test_merged_output_is_bounded_and_its_tree_dies_at_the_timeout(runner: RunnerClient) -> None:
    result = await run(runner, "yes & yes >&2", merge_stderr=True, timeout_s=1, max_output_bytes=1000)
    assert (len(result.stdout), result.stderr, result.truncated, result.timed_out) == (1000, b"", True, True)
    assert (await run(runner, "pgrep -c yes")).stdout == b"0\n"


async def test_a_command_line_may_be_as_long_as_the_kernel_accepts(runner: RunnerClient) -> None:
    longest = "x" * 131_071
    assert len((await run(runner, ("printf", "%s", longest))).stdout) == 131_071
    arguments = tuple("a" * 100_000 for _ in range(20))
    count = "import sys; print(sum(map(len, sys.argv)))"
    assert (await run(runner, ("python3", "-c", count, *arguments))).stdout == b"2000002\n"
    env = {f"NAME{number}": "é" * 50_000 for number in range(15)}
    size = "import os; print(sum(len(value) for name, value in os.environ.items() if name.startswith('NAME')))"
    assert (await run(runner, ("python3", "-c", size), env=env)).stdout == b"750000\n"
    process = await runner.start_process(Exec(("python3", "-c", count, *arguments)))
    assert (await runner.read_process(process.id, wait_s=30)).data == b"2000002\n"


@pytest.mark.parametrize(
    "options",
    [
        {"command": ("true", "x" * 131_072)},
        {"command": ("true", *("a" * 100_000 for _ in range(21)))},
        {"command": "true", "env": {"A": "x" * 131_070}},
        {"command": ("true", *("" for _ in range(240_000)))},
    ],
    ids=["one", "all", "variable", "pointers"],
)
async def test_a_command_line_that_the_kernel_refuses_names_the_limits(
    runner: RunnerClient, options: dict[str, Any]
) -> None:
    advice = r"^cannot run: .* the kernel accepts 131072 for one string and 2097152 in all.* through stdin or a file$"
    with pytest.raises(InvalidRequest, match=advice):
        await runner.exec(Exec(**options))
    with pytest.raises(InvalidRequest, match=advice):
        await runner.start_process(Exec(**options))
    with pytest.raises(
        InvalidRequest, match=r"take \d+ bytes as JSON, and the limit is 8388608; pass the data through"
    ):
        await runner.exec(Exec(("true", "\x01" * 100_000, *("\x01" * 100_000 for _ in range(20)))))


async def test_a_timeout_is_bounded_by_the_daemons_setting(runner: RunnerClient, box: Box) -> None:
    for client, most in ((runner, 3600), (RunnerClient({}, max_timeout_s=7200), 7200)):
        with pytest.raises(InvalidRequest, match=rf"at most {most}; the daemon's setting max_timeout_s raises it$"):
            await client.exec(Exec("true", timeout_s=most + 1))
