"""Hostile code in a sandbox, on both engines: it cannot escape, dies at its timeout and does not end the sandbox."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxd.client import Client
from tests.integration.runner.test_runner_flipper import FLIPPER
from tests.integration.runner.test_runner_kill import DETACHED, HIDING
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

TRIES = 30


@pytest.fixture(scope="module", params=["docker", "bubblewrap"])
def client(request: pytest.FixtureRequest, engine_socket: str, agent_image: str) -> Iterator[Client]:
    image = agent_image if request.param == "docker" else "host"
    daemon = RunningDaemon(engine=request.param, image=image)
    try:
        daemon.start()
        with Client(daemon.socket) as client:
            yield client
    finally:
        daemon.stop()


def test_no_tool_escapes_through_a_swapped_link(client: Client) -> None:
    client.ensure_sandbox("flipped", user="u")
    process = client.start_process("flipped", ["python3", "-c", FLIPPER])
    assert client.read_process("flipped", process.id, wait_s=30).data == b"flipping\n"
    found = 0
    for _ in range(TRIES):
        for path in ("/workspace/flip", "/workspace/flip/inside", "/workspace/flip/inside/passwd"):
            result = client.tool("flipped", "Grep", {"pattern": "root|see", "path": path, "output_mode": "content"})
            assert "root" not in result.content
            found += "nothing to see" in result.content
        read = client.tool("flipped", "Read", {"file_path": "/workspace/spy/inside/status"})
        assert "Name:" not in read.content
    assert found > 0
    assert client.kill_process("flipped", process.id).exit_code == 137
    client.destroy_sandbox("flipped")


def test_a_process_that_poses_as_another_call_dies_at_its_own_timeout(client: Client) -> None:
    client.ensure_sandbox("hiding", user="u")
    neighbour = client.start_process("hiding", "echo $$; exec sleep 4000")
    number = client.read_process("hiding", neighbour.id, wait_s=30).data.decode().strip()
    for trick in HIDING.values():
        result = client.exec("hiding", ["python3", "-c", DETACHED + trick, number], timeout_s=1)
        assert result.timed_out
        listed = client.exec("hiding", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
        assert "4321" not in listed
        assert "sleep 4000" in listed
    client.destroy_sandbox("hiding")


def test_a_short_read_of_a_long_file_leaves_a_small_sandbox_alive(client: Client) -> None:
    made = client.ensure_sandbox("small", user="u", limits={"memory_mb": 64})
    assert client.exec("small", "yes ab | head -c 10485000 > large; echo needle >> large").exit_code == 0
    path = {"file_path": "/workspace/large"}
    for offset in (1, 3_495_001):
        assert client.tool("small", "Read", {**path, "offset": offset, "limit": 10}).ok
    assert client.tool("small", "Edit", {**path, "old_string": "needle", "new_string": "pin"}).ok
    found = client.tool("small", "Grep", {"pattern": "pin", "path": "/workspace/large", "output_mode": "count"})
    assert found.content == "/workspace/large:1"
    assert client.get_sandbox("small").container == made.container
    client.destroy_sandbox("small")
