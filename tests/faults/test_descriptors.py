"""A daemon at its limit on open files: it refuses what exceeds the limit, and everything else continues. (I9)"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from sandboxd.client import Client
from sandboxd.errors import Busy, LimitReached, SandboxdError
from tests.faults.test_wire_abuse import HEALTH, TOKEN, answered, ask, connect, read_answer
from tests.running import RunningDaemon

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("bwrap") is None, reason="needs root and bwrap"),
]

OPEN_FILES = 384
CARRIED = 16
"""Of 384 descriptors, those left for bubblewrap's sandboxes: 160 are reserved, and 96 per socket are connections."""
READY = HEALTH.replace(b"healthz", b"readyz")


@pytest.fixture
def address() -> tuple[str, int]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        found: tuple[str, int] = free.getsockname()
    return found


@pytest.fixture
def daemon(address: tuple[str, int], tmp_path: Path) -> Iterator[RunningDaemon]:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    tcp = f"{address[0]}:{address[1]}"
    running = RunningDaemon(engine="bubblewrap", open_files=OPEN_FILES, tcp=tcp, token_file=token_file)
    try:
        yield running.start()
        destroy_all(running)
    finally:
        running.stop()


def destroy_all(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        for _ in range(100):
            try:
                for sandbox in client.list_sandboxes():
                    client.destroy_sandbox(sandbox.session)
                return
            except Busy:  # a call whose client disconnected takes a moment to end
                time.sleep(0.1)
        raise AssertionError("the calls of clients that left did not end")


def fill(daemon: RunningDaemon, *, ask_for: int) -> tuple[list[str], list[SandboxdError]]:
    """Request this many sandboxes at once; return the sessions that got one, and the errors of the others."""

    def create(session: str) -> SandboxdError | None:
        with daemon.client() as client:
            try:
                client.ensure_sandbox(session, user="ada")
            except SandboxdError as error:
                return error
        return None

    sessions = [f"s{number}" for number in range(ask_for)]
    with ThreadPoolExecutor(ask_for) as pool:
        answers = list(pool.map(create, sessions))
    created = [session for session, error in zip(sessions, answers, strict=True) if error is None]
    return created, [error for error in answers if error is not None]


def assert_works(client: Client, session: str) -> None:
    assert client.exec(session, "echo well").stdout == "well\n"
    assert client.exec(session, "ulimit -Sn").stdout == f"{OPEN_FILES}\n", (
        "a container's limit is not the daemon's share"
    )
    assert len(client.list_sandboxes()) <= CARRIED


def test_sandboxes_are_refused_before_the_daemon_runs_out_of_descriptors(daemon: RunningDaemon) -> None:
    created, refused = fill(daemon, ask_for=CARRIED + 8)
    assert len(created) == CARRIED
    assert {type(error) for error in refused} == {LimitReached}
    assert f"the limit of {OPEN_FILES} open files allows {CARRIED}" in str(refused[0])
    with daemon.client() as client, connect(socket.AF_UNIX, str(daemon.socket)) as operator:
        assert_works(client, created[0])
        assert ask(operator, READY).status == 200
        client.destroy_sandbox(created[0])
        client.ensure_sandbox(created[0], user="ada")
        with pytest.raises(LimitReached):
            client.ensure_sandbox("more", user="ada")
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        for session in created:
            assert client.exec(session, "echo adopted").stdout == "adopted\n"


def test_a_flood_of_connections_at_the_limit_does_not_affect_calls_and_removals(
    daemon: RunningDaemon, address: tuple[str, int]
) -> None:
    created, _ = fill(daemon, ask_for=CARRIED + 1)
    with ExitStack() as stack:
        for _ in range(OPEN_FILES):
            stack.enter_context(connect(socket.AF_UNIX, str(daemon.socket)))
            stack.enter_context(connect(socket.AF_INET, address))
        for session in created[:4]:
            with daemon.client() as client, connect(socket.AF_UNIX, str(daemon.socket)) as operator:
                assert ask(operator, HEALTH).status == 200
                assert ask(operator, READY).status == 200
                assert_works(client, session)
                client.destroy_sandbox(session)
                client.ensure_sandbox(session, user="ada")
        assert len(os.listdir(f"/proc/{daemon.pid}/fd")) < OPEN_FILES - 64


def test_calls_beyond_the_connection_limit_get_a_retryable_error(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        client.ensure_sandbox("s0", user="ada")
    body = json.dumps({"command": "sleep 600", "timeout_s": 600}).encode()
    head = f"POST /v1/tenants/default/sessions/s0/exec HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with ExitStack() as stack:
        calls = [stack.enter_context(connect(socket.AF_UNIX, str(daemon.socket))) for _ in range(OPEN_FILES // 4)]
        for call in calls:
            call.sendall(head.encode() + body)
        with connect(socket.AF_UNIX, str(daemon.socket)) as operator:
            assert ask(operator, HEALTH).status == 200
        refused = [json.loads(read_answer(call).body)["code"] for call in answered(calls)]
        assert set(refused) == {"request.busy"}
        assert len(refused) < len(calls) / 2
