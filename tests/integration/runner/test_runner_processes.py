"""Background processes in a real container: output by offset, stdin, terminals, and survival of a lost connection."""

from __future__ import annotations

import anyio
import pytest

from sandboxd.errors import Busy, Conflict, InvalidRequest, LimitReached, NotReady, ProcessNotFound
from sandboxd.models.process import SignalName
from sandboxd.runner import client
from sandboxd.runner.calls import Exec, ProcessLabel, Terminal
from sandboxd.runner.client import RunnerClient
from tests.integration.runner.box import HANG_S, Box

pytestmark = [pytest.mark.anyio, pytest.mark.engine]


async def read_until(runner: RunnerClient, process_id: str, wanted: bytes, offset: int = 0) -> bytes:
    """Read until the text appears; every wait is for new output."""
    seen = b""
    with anyio.fail_after(HANG_S):
        while wanted not in seen:
            output = await runner.read_process(process_id, offset, wait_s=20)
            if not output.data and not output.process.running:
                return seen
            seen += output.data
            offset = output.next_offset
    return seen


async def test_output_is_read_from_any_offset_until_the_end(runner: RunnerClient) -> None:
    process = await runner.start_process(Exec("echo out; echo err >&2; exit 5"))
    assert process.running
    text = await read_until(runner, process.id, b"never")
    assert sorted(text.split()) == [b"err", b"out"]
    output = await runner.read_process(process.id, offset=4)
    assert (output.offset, output.data, output.next_offset) == (4, text[4:], 8)
    assert (output.process.exit_code, output.process.output_bytes) == (5, 8)
    assert process.id in [found.id for found in await runner.list_processes()]


async def test_waiting_for_output_ends_with_the_first_byte_and_not_before(runner: RunnerClient) -> None:
    process = await runner.start_process(Exec("read line; echo got $line"))
    assert (await runner.read_process(process.id, wait_s=0.2)).data == b""

    async def write() -> None:
        await runner.write_process(process.id, b"this\n")

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        assert (await runner.read_process(process.id, wait_s=30)).data == b"got this\n"


async def test_when_memory_runs_out_a_command_dies_before_pid_1(runner: RunnerClient) -> None:
    score = "$(cat /proc/{}/oom_score_adj)"
    until = f"until [ {score.format('$$')} -gt {score.format(1)} ]; do sleep 0.01; done; echo preferred"
    process = await runner.start_process(Exec(until))  # soon after its start, not at once
    assert await read_until(runner, process.id, b"preferred") == b"preferred\n"


async def test_when_memory_runs_out_an_early_child_of_a_command_dies_before_pid_1(runner: RunnerClient) -> None:
    command = "sleep 9 & sleep 0.1; cat /proc/1/oom_score_adj /proc/$!/oom_score_adj; kill $!"
    for _ in range(15):
        first, second = (await runner.exec(Exec(("/bin/sh", "-c", command)))).stdout.split()
        assert int(second) > int(first)


async def test_stdin_is_closed_on_request(runner: RunnerClient) -> None:
    process = await runner.start_process(Exec(("wc", "-c")))
    await runner.write_process(process.id, b"x" * 300_000, eof=True)
    assert (await read_until(runner, process.id, b"\n")).strip() == b"300000"
    with pytest.raises(InvalidRequest):
        await runner.write_process(process.id, b"more")


async def test_every_byte_is_written_once_however_late_it_is_read(
    runner: RunnerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "WRITE_PATIENCE_S", 0.2)
    process = await runner.start_process(Exec("sleep 1; head -c 300000; sleep 1; wc -c"))
    data = bytes(range(250)) * 4_000
    taken, answers = 0, set()
    with anyio.fail_after(HANG_S):
        while taken < len(data):
            try:
                count = await runner.write_process(process.id, data[taken:], eof=True)
            except Busy as error:
                assert error.retryable
                answers.add("busy")
            else:
                assert count > 0
                answers.add("a part" if taken + count < len(data) else "the rest")
                taken += count
    assert answers == {"busy", "a part", "the rest"}
    output = await read_until(runner, process.id, b"never")
    assert output == data[:300_000] + b"700000\n"


async def test_a_process_that_never_reads_accepts_one_pipe_of_data_and_no_more(
    runner: RunnerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "WRITE_PATIENCE_S", 0.2)
    process = await runner.start_process(Exec(("sleep", "1000")))
    pipe_bytes = await runner.write_process(process.id, b"x" * 1_000_000, eof=True)
    assert 0 < pipe_bytes < 200_000
    with pytest.raises(Busy, match="nothing was written"):
        await runner.write_process(process.id, b"y")
    assert (await runner.exec(Exec(("true",)))).exit_code == 0
    await runner.kill_process(process.id)
    with pytest.raises(InvalidRequest, match="closed"):
        await runner.write_process(process.id, b"z")


async def test_a_write_to_a_process_that_closes_its_stdin_returns_how_much_it_accepted(runner: RunnerClient) -> None:
    process = await runner.start_process(Exec("head -c 100000 | wc -c"))
    with anyio.fail_after(HANG_S):
        taken = await runner.write_process(process.id, b"x" * 1_000_000)
    assert 100_000 <= taken < 1_000_000
    assert await read_until(runner, process.id, b"\n") == b"100000\n"


async def test_only_the_last_mebibyte_is_kept_and_offsets_stay_absolute(runner: RunnerClient) -> None:
    process = await runner.start_process(Exec("head -c 3000000 /dev/zero | tr '\\0' a; echo end"))
    with anyio.fail_after(HANG_S):
        offset = 0
        while (output := await runner.read_process(process.id, offset, wait_s=10)).process.running or output.data:
            offset = output.next_offset
    assert offset == 3_000_004
    first = await runner.read_process(process.id, 0, limit=10)
    assert first.offset == 3_000_004 - 1_048_576
    assert first.data == b"a" * 10
    assert (await runner.read_process(process.id, 3_000_000)).data == b"end\n"


async def test_a_process_with_a_tty_has_a_terminal(runner: RunnerClient) -> None:
    process = await runner.start_process(Exec("tty; stty size; read x; stty size; echo $x; sleep 100"), tty=True)
    assert b"/dev/pts/" in await read_until(runner, process.id, b"24 80\r\n")
    await runner.resize_process(process.id, 50, 132)
    await runner.write_process(process.id, b"typed\n")
    assert b"50 132" in await read_until(runner, process.id, b"132\r\ntyped\r\n")
    await runner.write_process(process.id, b"\x03")
    with anyio.fail_after(HANG_S):
        assert (await runner.read_process(process.id, 10_000, wait_s=30)).process.exit_code == 130


async def test_a_missing_process_is_not_found(runner: RunnerClient) -> None:
    for verb in (
        lambda: runner.read_process("p999"),
        lambda: runner.kill_process("p999"),
        lambda: runner.write_process("../x", b""),
        lambda: runner.resize_process("", 1, 1),
    ):
        with pytest.raises(ProcessNotFound):
            await verb()
    with pytest.raises(InvalidRequest, match="no-such"):
        await runner.start_process(Exec(("no-such",)))


async def test_a_process_outlives_the_connection_and_a_call_does_not(box: Box) -> None:
    async with box.connected() as runner:
        process = await runner.start_process(Exec("echo before; read x; echo after $x"))
        await read_until(runner, process.id, b"before")
        failures: list[Exception] = []

        async def call() -> None:
            try:
                await runner.exec(Exec("sleep 4322"))
            except NotReady as error:
                failures.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await runner.exec(Exec("until pgrep -f 'sleep 432[2]'; do sleep 0.05; done"))
            assert runner._link is not None
            runner._link.close("the test cut it")
        assert "unknown" in str(failures[0]) or "cannot tell the outcome of this call" in str(failures[0])
        with anyio.fail_after(HANG_S):
            assert [found.id for found in await runner.list_processes() if found.running] == [process.id]
            result = await runner.exec(
                Exec("for i in $(seq 100); do pgrep -f 'sleep 432[2]' || exit 0; sleep 0.1; done")
            )
            assert result.stdout == b""
    async with box.connected() as runner:
        await runner.write_process(process.id, b"restart\n")
        assert await read_until(runner, process.id, b"restart") == b"before\nafter restart\n"


async def test_at_most_64_processes_are_kept(runner: RunnerClient) -> None:
    started = [await runner.start_process(Exec(("sleep", "1000"))) for _ in range(64)]
    with pytest.raises(LimitReached):
        await runner.start_process(Exec(("sleep", "1000")))
    for process in started:
        await runner.kill_process(process.id)
    assert (await runner.start_process(Exec(("true",)))).id not in [process.id for process in started]
    assert len(await runner.list_processes()) <= 64


async def test_a_read_returns_as_much_as_requested(runner: RunnerClient) -> None:
    process = await runner.start_process(Exec("seq 1000000 | head -c 1048576; sleep 1000"))
    with anyio.fail_after(HANG_S):
        while (await runner.read_process(process.id, 1_048_575, wait_s=20)).data == b"":
            pass
    wanted = (await runner.exec(Exec("seq 1000000 | head -c 1048576", max_output_bytes=1_048_576))).stdout
    for offset, limit in ((0, 1_048_576), (0, 1_000_000), (500_000, 400_001), (1_000_000, 1_048_576)):
        output = await runner.read_process(process.id, offset, limit)
        assert output.data == wanted[offset : offset + limit]
        assert (output.offset, output.next_offset) == (offset, min(offset + limit, len(wanted)))
    with pytest.raises(InvalidRequest, match="limit must be 0 to 1048576"):
        await runner.read_process(process.id, limit=1_048_577)
    await runner.kill_process(process.id)


async def test_a_process_that_ends_on_a_signal_is_not_killed(runner: RunnerClient) -> None:
    command = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    process = await runner.start_process(Exec(command))
    await read_until(runner, process.id, b"ready")
    with anyio.fail_after(HANG_S):
        ended = await runner.kill_process(process.id, "TERM", grace_s=30)
    assert (ended.running, ended.exit_code, ended.ended_by) == (False, 3, "TERM")
    assert (await runner.read_process(process.id)).data.endswith(b"bye\n")


async def test_a_process_that_ignores_a_signal_is_killed_after_the_grace_period(runner: RunnerClient) -> None:
    command = "trap '' TERM; echo ready; sleep 4711 & setsid sleep 4711 & wait; while :; do sleep 4711; done"
    process = await runner.start_process(Exec(command))
    await read_until(runner, process.id, b"ready")
    with anyio.fail_after(HANG_S):
        ended = await runner.kill_process(process.id, "TERM", grace_s=0.5)
    assert (ended.running, ended.exit_code, ended.ended_by) == (False, 137, "KILL")
    assert (await runner.exec(Exec("pgrep -fc '^sleep 4711'"))).stdout == b"0\n"
    assert (await runner.kill_process(process.id)).ended_by == "KILL"


async def test_a_signal_reaches_the_process_and_nothing_else(runner: RunnerClient) -> None:
    bystander = await runner.start_process(Exec("trap 'echo hit' USR1; echo ready; while :; do sleep 0.05; done"))
    process = await runner.start_process(Exec("trap 'echo hit' USR1; echo ready; while :; do sleep 0.05; done"))
    for one in (bystander, process):
        await read_until(runner, one.id, b"ready")
    assert await runner.signal_process(process.id, "USR1") == 1
    await read_until(runner, process.id, b"hit")
    assert (await runner.read_process(bystander.id)).data == b"ready\n"
    with pytest.raises(InvalidRequest, match="has no terminal"):
        await runner.signal_process(process.id, "INT", "foreground")
    for one in (bystander, process):
        await runner.kill_process(one.id)
        with pytest.raises(InvalidRequest, match="has ended"):
            await runner.signal_process(one.id, "INT")
    with pytest.raises(ProcessNotFound):
        await runner.signal_process("p999", "INT")


@pytest.mark.parametrize("number", ["INT", "TERM", "KILL"])
async def test_a_shell_fed_through_stdin_survives_an_interrupted_command(
    runner: RunnerClient, number: SignalName
) -> None:
    shell = await runner.start_process(Exec(("bash",)))
    await runner.write_process(shell.id, b"cd /tmp; x=kept; echo ready; sleep 4712; echo code $?\n")
    await read_until(runner, shell.id, b"ready")
    await runner.exec(Exec("until pgrep -f '^sleep 4712'; do sleep 0.01; done", timeout_s=20))
    assert await runner.signal_process(shell.id, number, "children") == 1
    code = {"INT": b"code 130", "TERM": b"code 143", "KILL": b"code 137"}[number]
    assert code in await read_until(runner, shell.id, code)
    await runner.write_process(shell.id, b"echo $x in $PWD\n")
    assert b"kept in /tmp" in await read_until(runner, shell.id, b"kept in /tmp")
    assert await runner.signal_process(shell.id, "INT", "children") == 0
    await runner.kill_process(shell.id)


async def test_a_shell_in_a_terminal_survives_an_interrupted_command(runner: RunnerClient) -> None:
    """Every step waits for the prompt: what reaches bash between two prompts may be lost or handled late."""
    terminal = Terminal(term="dumb", echo=False, rows=50, columns=200)
    shell = await runner.start_process(Exec(("bash", "--norc", "-i")), tty=terminal)
    await runner.write_process(shell.id, b"x=kept; PS1='$ '; echo go; sleep 4713\n")
    await read_until(runner, shell.id, b"go")
    await runner.exec(Exec("until pgrep -f '^sleep 4713'; do sleep 0.01; done", timeout_s=20))
    assert await runner.signal_process(shell.id, "INT") == 1
    await read_until(runner, shell.id, b"\r\n$ ")
    await runner.write_process(shell.id, b"echo code $? $x\n")
    assert b"code 130 kept" in await read_until(runner, shell.id, b"code 130 kept\r\n$ ")
    assert await runner.signal_process(shell.id, "INT") == 1  # at its prompt, the shell itself gets it
    await read_until(runner, shell.id, b"^C\r\n$ ")
    await runner.write_process(shell.id, b"echo still $x\n")
    assert b"still kept" in await read_until(runner, shell.id, b"still kept\r\n$ ")
    assert await runner.signal_process(shell.id, "HUP", "process") == 1
    await read_until(runner, shell.id, b"never")
    assert not (await runner.read_process(shell.id)).process.running


async def test_a_terminal_has_the_requested_options(runner: RunnerClient) -> None:
    command = "echo $TERM; stty size; read line; echo got $line"
    quiet = await runner.start_process(Exec(command), tty=Terminal("vt100", echo=False, rows=33, columns=111))
    await runner.write_process(quiet.id, b"secret\n")
    assert await read_until(runner, quiet.id, b"got secret\r\n") == b"vt100\r\n33 111\r\ngot secret\r\n"
    usual = await runner.start_process(Exec(command), tty=True)
    await runner.write_process(usual.id, b"shown\n")
    text = await read_until(runner, usual.id, b"got shown\r\n")
    assert text.count(b"shown") == 2
    assert b"xterm-256color" in text
    assert b"24 80" in text
    named = await runner.start_process(Exec("echo $TERM", env={"TERM": "mine"}), tty=Terminal("vt100"))
    assert b"mine" in await read_until(runner, named.id, b"mine")


async def test_a_label_is_unique_among_running_processes_and_its_kind_is_bounded(runner: RunnerClient) -> None:
    first = await runner.start_process(Exec("sleep 1000"), label=ProcessLabel("context", "a", 2))
    assert first.context == "a"
    with pytest.raises(Conflict, match="it exists already"):
        await runner.start_process(Exec("sleep 1000"), label=ProcessLabel("context", "a", 2))
    second = await runner.start_process(Exec("sleep 1000"), label=ProcessLabel("context", "b", 2))
    with pytest.raises(LimitReached, match="2 are open"):
        await runner.start_process(Exec("sleep 1000"), label=ProcessLabel("context", "c", 2))
    await runner.kill_process(first.id)
    third = await runner.start_process(Exec("sleep 1000"), label=ProcessLabel("context", "a", 2))
    listed = {
        process.id: process.context for process in await runner.list_processes() if process.context and process.running
    }
    assert listed == {second.id: "b", third.id: "a"}
    for process in (second, third):
        await runner.kill_process(process.id)
