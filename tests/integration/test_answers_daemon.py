"""Large answers of a real daemon: within the memory budget of calls, and released afterwards."""

from __future__ import annotations

import http.client
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

OUTPUT_BYTES = 6_000_000
CALLS = 12
BUDGET_MB = 64


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=120)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _memory_mb(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) // 1024
    raise AssertionError(f"no {name}")


def _run(daemon: RunningDaemon, command: str) -> tuple[int, int]:
    """Run a command as a client that never holds its answer; return the status and how many bytes arrived."""
    connection = _UnixConnection(daemon.socket)
    body = json.dumps({"command": command, "max_output_bytes": OUTPUT_BYTES, "timeout_s": 100})
    try:
        connection.request("POST", "/v1/tenants/default/sessions/s1/exec", body)
        answer = connection.getresponse()
        size = 0
        while piece := answer.read(262_144):
            size += len(piece)
    finally:
        connection.close()
    return answer.status, size


def test_a_flood_of_large_answers_stays_within_its_memory(engine_socket: str, agent_image: str) -> None:
    """I9. Each byte of output is six of JSON, so held whole the answers would take a gigabyte."""
    daemon = RunningDaemon(image=agent_image, call_memory_mb=BUDGET_MB)
    command = f"head -c {OUTPUT_BYTES} /dev/zero | tee /dev/stderr"
    try:
        daemon.start()
        with daemon.client() as client:
            client.ensure_sandbox("s1", limits={"memory_mb": 256})
        idle_mb = _memory_mb(daemon.pid, "VmRSS")
        waiting, statuses = CALLS, []
        for _ in range(CALLS):
            with ThreadPoolExecutor(waiting) as threads:
                for status, size in threads.map(lambda _: _run(daemon, command), range(waiting)):
                    statuses.append(status)
                    if status == 200:
                        assert size > 2 * 6 * OUTPUT_BYTES
            waiting = CALLS - statuses.count(200)
            if not waiting:
                break
        assert set(statuses) == {200, 409}
        assert statuses.count(200) == CALLS
        assert _memory_mb(daemon.pid, "VmHWM") - idle_mb < 3 * BUDGET_MB
        assert _memory_mb(daemon.pid, "VmRSS") - idle_mb < BUDGET_MB
    finally:
        daemon.stop()
