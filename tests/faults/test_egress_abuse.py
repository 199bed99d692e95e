"""Hostile clients in a sandbox with network access: the daemon stays small, and other sandboxes are served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Client
from tests.origin_servers import OriginServers
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

PLACES = 32
MIB = 1_048_576
PRELUDE = """
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
def connect():
    s = socket.socket(); s.settimeout(20); s.connect(("127.0.0.1", 3128)); return s
def say(text): print(text, flush=True)
"""
ABUSES = {
    "slow requests": """
held = [connect() for _ in range(200)]
say("begun")
for _ in range(100):
    for s in held:
        try: s.send(b"G")
        except OSError: pass
    time.sleep(0.05)
""",
    "ten thousand connections": """
say("begun")
for _ in range(10_000):
    try: s = connect(); s.send(b"CONNECT x"); s.close()
    except OSError: pass
""",
    "endless headers": """
say("begun")
for _ in range(200):
    try:
        s = connect(); s.send(b"GET http://files.test/ HTTP/1.1\\r\\n")
        for _ in range(2000): s.send(b"X: " + b"y" * 1000 + b"\\r\\n")
    except OSError: pass
""",
    "garbage instead of TLS": """
say("begun")
for _ in range(300):
    try:
        s = connect(); s.send(b"CONNECT files.test:%d HTTP/1.1\\r\\nHost: files.test\\r\\n\\r\\n" % PORT); s.recv(100)
        s.send(b"\\x16\\x03\\x01\\xff\\xff" + b"\\0" * 70_000); s.recv(100)
    except OSError: pass
""",
    "answers that are never read": """
held = []
for _ in range(30):
    s = connect(); held.append(s)
    s.send(b"GET http://files.test:%d/big HTTP/1.1\\r\\nHost: files.test:%d\\r\\n\\r\\n" % (HTTP_PORT, HTTP_PORT))
say("begun")
time.sleep(8)
""",
}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OriginServers]:
    files = tmp_path_factory.mktemp("files")
    (files / "big").write_bytes(bytes(64 * MIB))
    (files / "small").write_bytes(b"small\n")
    with OriginServers(tmp_path_factory.mktemp("origin"), "files.test", files=files) as servers:
        yield servers


@pytest.fixture(scope="module")
def daemon(origin: OriginServers, engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    options = {"hosts": {"files.test": ["127.0.0.1"]}, "max_connections": PLACES, "head_timeout_s": 1}
    running = RunningDaemon(image=agent_image, network=json.dumps(options))
    try:
        yield running.start(environment={"SSL_CERT_FILE": str(origin.ca_file)})
        assert running.terminate() == 0  # I11
    finally:
        running.stop()


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def fetch(client: Client, session: str, port: int) -> str:
    result = client.exec(session, f"curl -sS --max-time 50 http://files.test:{port}/small", timeout_s=60)
    return result.stdout + result.stderr


@pytest.mark.parametrize("abuse", ABUSES)
def test_a_hostile_client_harms_only_its_own_sandbox(daemon: RunningDaemon, origin: OriginServers, abuse: str) -> None:
    ports = (origin.port, origin.http_port)
    network = {"allow": [{"host": "files.test", "port": port, "private": True} for port in ports]}
    with daemon.client() as client:
        for session in ("hostile", "other"):
            client.ensure_sandbox(session, network=network, limits={"memory_mb": 256})
        assert fetch(client, "other", origin.http_port) == "small\n"
        before = resident_bytes(daemon.pid)
        code = f"PORT, HTTP_PORT = {ports}\n" + PRELUDE + ABUSES[abuse]
        process = client.start_process("hostile", ["python3", "-c", code]).id
        assert client.read_process("hostile", process, wait_s=30).data == b"begun\n"
        peak = before
        for _ in range(10):
            assert client.exec("other", "true").exit_code == 0
            assert fetch(client, "other", origin.http_port) == "small\n"
            peak = max(peak, resident_bytes(daemon.pid))
        assert client.exec("hostile", "echo alive").stdout == "alive\n"
        assert peak < before + 48 * MIB, f"the daemon grew by {(peak - before) // MIB} MiB"
        client.kill_process("hostile", process)
        # Its places are free again once the deadlines of its connections have passed.
        assert fetch(client, "hostile", origin.http_port) == "small\n"
        assert len(client.list_egress("hostile").items) <= 1000
        for session in ("hostile", "other"):
            client.destroy_sandbox(session)
