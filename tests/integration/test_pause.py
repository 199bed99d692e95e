"""A pause on request: the same process with the same memory afterwards, also across a restart.

`tests/conformance/test_engine.py` checks that a paused container uses no CPU time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sandboxd.client import Client
from tests.running import RunningDaemon

pytestmark = [pytest.mark.engine]

COUNTER = "import time\nfor number in range(10**9): print(number, flush=True); time.sleep(0.01)"


@pytest.fixture(params=["docker", "bubblewrap"])
def daemon(engine_socket: str, agent_image: str, request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    settings: dict[str, Any] = {"image": agent_image} if request.param == "docker" else {}
    running = RunningDaemon(engine=request.param, **settings)
    try:
        yield running.start()
    finally:
        running.stop()


def count(client: Client, process: str) -> int:
    """Return the newest number of the counter."""
    output = client.read_process("s1", process, offset=0, limit=1_048_576)
    return int(output.data.split(b"\n")[-2])


def test_a_paused_process_continues_where_it_was_after_a_restart_of_the_daemon(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        client.ensure_sandbox("s1", user="ada")
        process = client.start_process("s1", ["python3", "-c", COUNTER]).id
        client.read_process("s1", process, wait_s=30)
        before = count(client, process)
        assert client.pause_sandbox("s1").state == "paused"
        daemon.kill()
    with daemon.start().client() as client:
        assert client.get_sandbox("s1").state == "paused"
        assert client.resume_sandbox("s1").state == "ready"
        (found,) = client.list_processes("s1")
        assert (found.id, found.running) == (process, True)
        output = client.read_process("s1", process, offset=0, limit=1_048_576)
        numbers = [int(line) for line in output.data.split(b"\n")[:-1]]
        assert numbers == list(range(len(numbers))), "it started again, or lost its counter"
        assert numbers[-1] >= before
        client.read_process("s1", process, offset=output.next_offset, wait_s=30)
        assert count(client, process) > numbers[-1]
        client.destroy_sandbox("s1")
    assert daemon.containers() == []
