"""The API of a real daemon on a real engine, through both clients."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import anyio
import anyio.lowlevel
import pytest

from sandboxd.client import AsyncClient, Client, ExecOutput, ExecResult
from sandboxd.errors import Conflict, InvalidRequest, NotFound, OutsideSandbox, ReadOnly
from tests.running import RunningDaemon

pytestmark = [pytest.mark.anyio, pytest.mark.engine]


@pytest.fixture
def session(client: Client) -> Iterator[str]:
    name = f"s-{secrets.token_hex(4)}"
    client.ensure_sandbox(name, "u1", limits={"memory_mb": 128, "pids": 64, "disk_mb": 64})
    yield name
    client.destroy_sandbox(name)


def test_a_sandbox_belongs_to_its_user_and_its_tenant(client: Client, session: str) -> None:
    view = client.get_sandbox(session)
    assert (view.user, view.state) == ("u1", "ready")
    assert client.ensure_sandbox(session, "u1").created is False
    with pytest.raises(Conflict):
        client.ensure_sandbox(session, "u2")
    with pytest.raises(NotFound):
        client.get_sandbox(session, tenant="other")
    with pytest.raises(NotFound):
        client.exec(session, "true", tenant="other")
    assert session in [one.session for one in client.list_sandboxes()]
    assert client.list_sandboxes(tenant="other") == []


def test_a_command_returns_its_output_and_exit_code(client: Client, session: str) -> None:
    result = client.exec(session, "cat; echo $A >&2; pwd; exit 3", stdin="hä\n", env={"A": "b"})
    assert (result.exit_code, result.stdout, result.stderr) == (3, "hä\n/workspace\n", "b\n")
    assert client.exec(session, ["nonsuch"]).exit_code == 127
    result = client.exec(session, "sleep 60 & sleep 60", timeout_s=0.5)
    assert (result.exit_code, result.timed_out) == (None, True)
    assert client.exec(session, "pgrep -c sleep").stdout.strip() == "0"
    result = client.exec(session, "head -c 100000 /dev/zero", max_output_bytes=1000)
    assert (len(result.stdout), result.truncated) == (1000, True)


def test_a_command_streams_its_output(client: Client, session: str) -> None:
    items = list(client.exec_stream(session, "printf '\\377'; sleep 0.2; echo err >&2; exit 4"))
    output = [item for item in items if isinstance(item, ExecOutput)]
    assert b"".join(item.data for item in output if item.stream == "stdout") == b"\xff"
    assert b"".join(item.data for item in output if item.stream == "stderr") == b"err\n"
    assert isinstance(items[-1], ExecResult)
    assert items[-1].exit_code == 4


async def test_the_tree_dies_when_the_client_disconnects(daemon: RunningDaemon, session: str) -> None:
    async with AsyncClient(daemon.socket) as client:
        with anyio.move_on_after(1):
            await client.exec(session, "sleep 4321 & sleep 4321")
        with anyio.fail_after(20):
            while (await client.exec(session, "pgrep -f '^sleep 4321'")).stdout:
                await anyio.lowlevel.checkpoint()


async def test_many_commands_run_at_once(daemon: RunningDaemon, session: str) -> None:
    async with AsyncClient(daemon.socket) as client, anyio.create_task_group() as tasks:
        outputs: list[str] = []

        async def one(number: int) -> None:
            outputs.append((await client.exec(session, ["echo", str(number)])).stdout)

        for number in range(40):
            tasks.start_soon(one, number)
    assert sorted(map(int, outputs)) == list(range(40))


def test_files_are_passed_through_unchanged(client: Client, session: str) -> None:
    content = secrets.token_bytes(3_000_000)
    assert client.write_file(session, "/workspace/deep/er/a b", content).size_bytes == len(content)
    assert client.read_file(session, "/workspace/deep/er/a b") == content
    with pytest.raises(NotFound):
        client.read_file(session, "/workspace/none")
    for path in ("/etc/passwd", "/workspace/../etc/passwd"):
        with pytest.raises(OutsideSandbox):
            client.write_file(session, path, b"x")
    client.exec(session, "ln -s /proc/self/status /workspace/link; mkfifo /workspace/fifo")
    with pytest.raises(OutsideSandbox):
        client.read_file(session, "/workspace/link")
    with pytest.raises(InvalidRequest):
        client.read_file(session, "/workspace/fifo")
    with pytest.raises(ReadOnly):
        client.write_file(session, "/workspace/memo/NOTES.md", b"x")


def test_background_processes_are_fed_read_and_killed(client: Client, session: str) -> None:
    process = client.start_process(session, "while read line; do echo got $line; done; exit 5")
    client.write_process(session, process.id, "one\ntwo\n")
    output = b""
    while output.count(b"\n") < 2:
        output += client.read_process(session, process.id, offset=len(output), wait_s=10).data
    assert output == b"got one\ngot two\n"
    client.write_process(session, process.id, "", eof=True)
    while (ended := client.read_process(session, process.id, offset=len(output), wait_s=10).process).running:
        pass
    assert ended.exit_code == 5
    other = client.start_process(session, "sleep 1000")
    assert client.kill_process(session, other.id).running is False
    assert {one.id for one in client.list_processes(session)} >= {process.id, other.id}


def test_a_long_write_reaches_a_late_reader_in_full(client: Client, session: str) -> None:
    process = client.start_process(session, "sleep 0.5; wc -c")
    client.write_process(session, process.id, b"x" * 1_000_000, eof=True)
    output = b""
    while not output.endswith(b"\n"):
        output += client.read_process(session, process.id, offset=len(output), wait_s=10).data
    assert output == b"1000000\n"


def test_tools_work_together(client: Client, session: str) -> None:
    assert client.tool(session, "Write", {"file_path": "/workspace/a.py", "contents": "x = 1\nprint(x)\n"}).ok
    assert client.tool(session, "Read", {"file_path": "/workspace/a.py"}).content == "     1\tx = 1\n     2\tprint(x)"
    edit = {"file_path": "/workspace/a.py", "old_string": "x = 1", "new_string": "x = 2"}
    assert client.tool(session, "Edit", edit).ok
    assert client.tool(session, "Edit", edit).ok is False
    assert client.tool(session, "Bash", {"command": "python3 a.py"}).content == "2"
    assert client.tool(session, "Python", {"code": "import a"}).content == "2"
    assert client.tool(session, "Glob", {"pattern": "**/*.py"}).content == "/workspace/a.py"
    assert client.tool(session, "Grep", {"pattern": "PRINT", "case_insensitive": True}).content == "/workspace/a.py"
    assert client.tool(session, "Read", {"file_path": "/workspace/none"}).ok is False
    outside = client.tool(session, "Write", {"file_path": "/etc/passwd", "contents": "x"})
    assert (outside.ok, outside.details["code"]) == (False, "request.outside_sandbox")
    started = client.tool(session, "Bash", {"command": "echo hi", "run_in_background": True})
    assert client.read_process(session, started.details["process_id"], wait_s=10).data == b"hi\n"


def test_a_retry_with_the_same_key_does_not_run_again(client: Client, session: str) -> None:
    command = "echo x >> n; wc -l < n"
    answers = [client.exec(session, command, idempotency_key=f"k-{session}").stdout.strip() for _ in range(2)]
    assert answers == ["1", "1"]


def test_events_report_what_happens(client: Client, session: str) -> None:
    assert client.exec(session, "printf 'in the %s' output").stdout == "in the output"
    mine = [event for event in client.events(follow=False) if event.fields.get("session") == session]
    assert {event.kind for event in mine} >= {"sandbox", "exec"}
    assert "in the output" not in repr(mine)  # the trace has it, and belongs to the session


TURN = """
import ctypes, os, struct
numbers = {"x86_64": 315, "aarch64": 275}  # sched_getattr
found = ctypes.create_string_buffer(56)
ctypes.CDLL(None).syscall(numbers[os.uname().machine], 0, found, 56, 0)
print(struct.unpack_from("=IIQiIQ", found)[5], os.nice(0))
"""


def test_the_event_loop_has_priority_and_commands_get_short_slices(
    daemon: RunningDaemon, client: Client, session: str
) -> None:
    """A busy neighbour must not delay the others."""
    assert os.getpriority(os.PRIO_PROCESS, daemon.pid) == (-10 if os.getuid() == 0 else 0)
    turn_ns, nice = client.exec(session, ["python3", "-c", TURN]).stdout.split()
    assert nice == "0"
    knows_turns = tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 12)
    assert turn_ns == ("500000" if knows_turns else "0")
