"""Commands and processes of a real daemon: large input and output, ignored signals, and settings that bound them."""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from memo.errors import TooLarge
from sandboxd.client import AsyncClient, Client, ExecOutput
from sandboxd.errors import InvalidRequest, NotFound
from tests.running import RunningDaemon

pytestmark = [pytest.mark.anyio, pytest.mark.engine]

MEBIBYTE = 1_048_576
PIECE = bytes(range(256)) * 4096
PIECES = 96
DIGEST = hashlib.sha256(PIECE * PIECES).hexdigest()
SLACK_BYTES = 24 * MEBIBYTE
"""A quarter of the stream; the measurement itself and a pending garbage collection take less."""


@pytest.fixture
def session(client: Client) -> Iterator[str]:
    name = f"s-{secrets.token_hex(4)}"
    client.ensure_sandbox(name, "u1", limits={"memory_mb": 128, "pids": 64, "disk_mb": 256})
    yield name
    client.destroy_sandbox(name, missing_ok=True)


def peak_bytes(pid: int | str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def test_96_mebibytes_of_stdin_do_not_grow_the_daemon_or_pid_1(
    daemon: RunningDaemon, client: Client, session: str
) -> None:
    client.exec(session, ["sha256sum"], stdin=itertools.repeat(PIECE, 2))
    container = client.get_sandbox(session).container
    inside = subprocess.run(
        ["docker", "inspect", "--format", "{{.State.Pid}}", str(container)], check=True, capture_output=True, text=True
    )
    pids = (daemon.pid, int(inside.stdout))
    for pid in pids:
        forget_peak(pid)
    before = [peak_bytes(pid) for pid in pids]
    result = client.exec(session, ["sha256sum"], stdin=itertools.repeat(PIECE, PIECES))
    assert (result.exit_code, result.stdout.split()[0]) == (0, DIGEST)
    for pid, peak in zip(pids, before, strict=True):
        assert peak_bytes(pid) < peak + SLACK_BYTES


async def test_every_interface_streams_the_same_bytes(daemon: RunningDaemon, session: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(PIECES):
            yield PIECE

    async with AsyncClient(daemon.socket) as client:
        with anyio.fail_after(120):
            assert (await client.exec(session, ["sha256sum"], stdin=pieces())).stdout.split()[0] == DIGEST
            output = [item async for item in client.exec_stream(session, ["wc", "-c"], stdin=PIECE * PIECES)]
            assert output[0] == ExecOutput("stdout", f"{len(PIECE) * PIECES}\n".encode())
    with tempfile.TemporaryFile() as file:
        for _ in range(PIECES):
            file.write(PIECE)
        file.seek(0)
        words = [sys.executable, "-m", "sandboxd", "exec", session, "sha256sum"]
        env = {**os.environ, "SANDBOXD_SOCKET": str(daemon.socket)}
        done = await anyio.run_process(words, stdin=file, env=env)
    assert done.stdout.split()[0].decode() == DIGEST


def test_a_command_that_does_not_read_ends_as_usual(client: Client, session: str) -> None:
    endless = itertools.repeat(PIECE)
    result = client.exec(session, "sleep 4321", stdin=endless, timeout_s=1)
    assert result.timed_out
    assert client.exec(session, "pgrep -fc '^sleep 4321'").stdout == "0\n"
    assert client.exec(session, "exit 7", stdin=endless).exit_code == 7
    assert client.exec(session, ["head", "-c", "3"], stdin=endless).stdout_bytes == PIECE[:3]


async def test_the_tree_dies_when_a_client_with_unread_stdin_disconnects(daemon: RunningDaemon, session: str) -> None:
    async with AsyncClient(daemon.socket) as client:
        with anyio.move_on_after(1.5):
            await client.exec(session, "sleep 4321 & sleep 4321", stdin=itertools.repeat(PIECE))
        with anyio.fail_after(30):
            while (await client.exec(session, "pgrep -f '^sleep 4321'")).stdout:
                await anyio.sleep(0.05)


def test_long_command_lines_and_exact_bytes_pass_through(client: Client, session: str) -> None:
    arguments = ["a" * 100_000 for _ in range(20)]
    count = ["python3", "-c", "import sys; print(sum(map(len, sys.argv)))", *arguments]
    assert client.exec(session, count).stdout == "2000002\n"
    process = client.start_process(session, count)
    assert client.read_process(session, process.id, wait_s=30).data == b"2000002\n"
    for command in (["true", *arguments, *arguments], ["true", "x" * 131_072]):
        with pytest.raises(InvalidRequest, match="through stdin or a file"):
            client.exec(session, command)
    result = client.exec(session, "head -c 100000 /dev/urandom | tee random; printf '\\377' >&2")
    assert hashlib.sha256(result.stdout_bytes).hexdigest() == client.exec(session, "sha256sum random").stdout.split()[0]
    assert result.stderr_bytes == b"\xff"
    assert client.exec(session, "echo a; echo b >&2; echo c", merge_stderr=True).stdout == "a\nb\nc\n"


def _read_until(client: Client, session: str, process: str, wanted: bytes) -> bytes:
    seen = b""
    for _ in range(100):
        seen += client.read_process(session, process, offset=len(seen), wait_s=10).data
        if wanted in seen:
            return seen
    raise AssertionError(seen)


@pytest.mark.parametrize("tty", [False, True])
def test_a_persistent_shell_survives_an_interrupt(client: Client, session: str, tty: bool) -> None:
    options = {"tty": True, "echo": False, "term": "dumb"} if tty else {}
    command = ["bash", "--norc", "-i"] if tty else ["bash"]
    shell = client.start_process(session, command, **options)  # type: ignore[arg-type]
    client.write_process(session, shell.id, "x=kept; cd /tmp; echo go; sleep 4712\n")
    _read_until(client, session, shell.id, b"go")
    client.exec(session, "until pgrep -f '^sleep 4712'; do sleep 0.01; done", timeout_s=20)
    assert client.signal_process(session, shell.id, "INT", to=None if tty else "children") == 1
    client.write_process(session, shell.id, "echo code $? $x $PWD\n")
    _read_until(client, session, shell.id, b"code 130 kept /tmp")
    assert client.exec(session, "pgrep -fc '^sleep 4712'").stdout == "0\n"
    ended = client.kill_process(session, shell.id, signal="HUP", grace_s=20)
    assert (ended.running, ended.ended_by) == (False, "HUP")


def test_a_large_read_of_a_process_is_honoured(client: Client, session: str) -> None:
    process = client.start_process(session, "head -c 1048576 /dev/zero; sleep 1000")
    while client.read_process(session, process.id, offset=MEBIBYTE - 1, wait_s=10).data == b"":
        pass
    output = client.read_process(session, process.id, limit=MEBIBYTE)
    assert (len(output.data), output.next_offset) == (MEBIBYTE, MEBIBYTE)
    with pytest.raises(InvalidRequest, match="limit"):
        client.read_process(session, process.id, limit=MEBIBYTE + 1)


def test_a_sandbox_may_be_destroyed_twice(client: Client, session: str) -> None:
    client.destroy_sandbox(session, missing_ok=True)
    client.destroy_sandbox(session, missing_ok=True)
    with pytest.raises(NotFound):
        client.destroy_sandbox(session)


def test_a_timeout_beyond_the_setting_names_it(client: Client, session: str) -> None:
    for ask in (
        lambda: client.exec(session, "true", timeout_s=3601),
        lambda: list(client.exec_stream(session, "true", timeout_s=3601)),
    ):
        with pytest.raises(InvalidRequest, match="at most 3600; the daemon's setting max_timeout_s raises it"):
            ask()
    refused = client.tool(session, "Bash", {"command": "true", "timeout": 3_600_001})
    assert (refused.ok, "max_timeout_s" in refused.content) == (False, True)


@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_settings_raise_the_bounds_of_timeouts_and_documents(agent_image: str, store: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memo.db" if store == "sqlite" else f"file://{tmp_path}/memo"
    text = "0123456789abcde\n" * 300_000  # 4.8 MB
    daemon = RunningDaemon(image=agent_image, max_timeout_s=10_000, max_document_bytes=5 * MEBIBYTE, store=url)
    try:
        with daemon.start().client() as client:
            client.ensure_sandbox("s1", "u1")
            assert client.exec("s1", "true", timeout_s=10_000).exit_code == 0
            assert client.tool("s1", "Bash", {"command": "true", "timeout": 10_000_000}).ok
            with pytest.raises(InvalidRequest, match="at most 10000;"):
                client.exec("s1", "true", timeout_s=10_001)
            assert client.write_memo("s1", "BIG.md", text).revision == 1
            digest = hashlib.sha256(text.encode()).hexdigest()
            assert client.exec("s1", "sha256sum memo/session/BIG.md").stdout.split()[0] == digest
            assert client.read_memo("s1", "BIG.md").text == text
            with pytest.raises(TooLarge, match="max_document_bytes"):
                client.write_memo("s1", "BIG.md", text + text)
            path = "/workspace/memo/session/TOO.md"
            assert client.tool("s1", "Write", {"file_path": path, "contents": text}).ok
            assert not client.tool("s1", "Write", {"file_path": path, "contents": text + text}).ok
    finally:
        daemon.stop()
