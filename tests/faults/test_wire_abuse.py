"""A daemon whose sockets are abused with raw bytes: its memory stays small, and its operator can still connect. (I9)

`make test-all` sends ten times as much.
"""

from __future__ import annotations

import json
import os
import resource
import select
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.long_runs import scaled
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

SCALE = scaled(1, 10)
OWN_DESCRIPTORS = 16
"""Descriptors that a daemon may still open after its start: databases, the engine's events."""
FLOOD_BYTES = 32_000_000
ROOM_BYTES = 24_000_000
"""How much the daemon may grow while unauthenticated clients send."""
ATTACKERS = 4
TOKEN = "t" * 32
WAIT_S = 30

HEAD = b"POST /v1/tenants/acme/sessions/s1/exec HTTP/1.1\r\nhost: x\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


class Answer(NamedTuple):
    status: int
    body: bytes


class Served:
    """A daemon that also listens on TCP."""

    def __init__(self, daemon: RunningDaemon, address: tuple[str, int]) -> None:
        self.daemon = daemon
        self.address = address

    def unix(self) -> socket.socket:
        return connect(socket.AF_UNIX, str(self.daemon.socket))

    def tcp(self) -> socket.socket:
        return connect(socket.AF_INET, self.address)

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.daemon.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    def authorised(self, method: str, target: str) -> bytes:
        host, port = self.address
        head = f"{method} {target} HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {TOKEN}\r\n"
        return f"{head}content-length: 0\r\n\r\n".encode()


def connect(family: socket.AddressFamily, address: str | tuple[str, int]) -> socket.socket:
    connection = socket.socket(family)
    connection.settimeout(WAIT_S)
    connection.connect(address)
    return connection


def ask(connection: socket.socket, raw: bytes) -> Answer:
    connection.sendall(raw)
    return read_answer(connection)


def read_answer(connection: socket.socket) -> Answer:
    data = b""
    while b"\r\n\r\n" not in data:
        data += _receive(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    size = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
    while len(body) < size:
        body += _receive(connection)
    return Answer(int(head.split()[1]), body)


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(65_536)
    assert data, "the connection ended before the answer"
    return data


def answered(connections: Iterable[socket.socket], wait_s: float = 0) -> list[socket.socket]:
    """Return the sockets that the daemon has answered or closed. Not by `select`, which refuses descriptors above
    1023."""
    by_number = {connection.fileno(): connection for connection in connections}
    poll = select.poll()
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(wait_s * 1000)]


@contextmanager
def open_files(limit: int) -> Iterator[None]:
    """Set a soft limit on open files, for this process and the daemons that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def make_served(engine_socket: str, agent_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    token_file = tmp_path_factory.mktemp("token") / "token"
    token_file.write_text(TOKEN)
    with ExitStack() as stack:

        def start(**settings: Any) -> Served:
            with socket.create_server(("127.0.0.1", 0)) as free:
                address: tuple[str, int] = free.getsockname()
            tcp = f"{address[0]}:{address[1]}"
            daemon = RunningDaemon(image=agent_image, tcp=tcp, token_file=token_file, **settings)
            stack.callback(daemon.stop)
            return Served(daemon.start(), address)

        yield start


Start = Callable[..., Served]


@pytest.fixture(scope="module")
def served(make_served: Start) -> Served:
    return make_served()


FLOODS = {
    "many headers": (HEAD, b"".join(b"x%05d: yyyyyyyy\r\n" % number for number in range(4000))),
    "one header": (HEAD + b"x: ", b"y" * 65_536),
    "one header name": (HEAD, b"y" * 65_536),
    "a folded header": (HEAD + b"x: y\r\n", b" y\r\n" * 16_384),
    "a target": (b"GET /", b"y" * 65_536),
    "empty lines": (b"", b"\r\n" * 32_768),
    "trailers": (CHUNKED + b"1\r\nx\r\n0\r\n", b"".join(b"x%05d: yyyyyyyy\r\n" % number for number in range(4000))),
    "one trailer": (CHUNKED + b"1\r\nx\r\n0\r\nx: ", b"y" * 65_536),
    "a chunk extension": (CHUNKED + b"1;x=", b"y" * 65_536),
    "chunk extensions": (CHUNKED, (b"1;x=" + b"y" * 1000 + b"\r\nx\r\n") * 64),
    "tiny chunks": (CHUNKED, b"1\r\nx\r\n" * 10_000),
    "a body without end": (CHUNKED, b"10000\r\n" + b"y" * 65_536 + b"\r\n"),
    "requests ahead": (b"", HEALTH * 1600),
    "the smallest requests ahead": (b"", b"GET / HTTP/1.1\r\n\r\n" * 4000),
    "requests ahead with bodies": (b"", (HEAD + b"content-length: 1000\r\n\r\n" + b"y" * 1000) * 60),
    "zero bytes": (b"", bytes(65_536)),
    "a TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00", b"\x01\xfc\x03\x03" * 16_384),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_without_a_token_neither_grows_the_daemon_nor_locks_its_operator_out(served: Served, kind: str) -> None:
    opening, block = FLOODS[kind]
    before = served.resident_bytes()
    # Every request is answered and every chunk parsed: that takes longer than being cut off.
    flood_bytes = FLOOD_BYTES * SCALE // (16 if "ahead" in kind else 4 if kind == "tiny chunks" else 1)
    left = [flood_bytes // ATTACKERS] * ATTACKERS

    def send(number: int) -> None:
        while left[number] > 0:
            try:
                with served.tcp() as connection:
                    connection.sendall(opening)
                    while left[number] > 0:
                        connection.sendall(block)
                        left[number] -= len(block)
                        while answered([connection]) and connection.recv(65_536):
                            pass  # a client that reads its answers is not slowed down
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65_536):
                        pass
            except OSError:
                left[number] -= len(block)  # the connection was closed while sending: try again

    attackers = [threading.Thread(target=send, args=(number,)) for number in range(ATTACKERS)]
    for attacker in attackers:
        attacker.start()
    most = before
    with served.unix() as operator:
        while any(attacker.is_alive() for attacker in attackers):
            assert ask(operator, HEALTH).status == 200
            most = max(most, served.resident_bytes())
            attackers[0].join(0.02)
    for attacker in attackers:
        attacker.join()
    assert max(most, served.resident_bytes()) - before < ROOM_BYTES
    with served.tcp() as stranger:
        assert ask(stranger, HEALTH).status == 403  # the daemon still accepts unauthenticated clients, and refuses them


def test_half_sent_bodies_of_a_tenant_do_not_lock_it_out(make_served: Start) -> None:
    """Send as many requests as one tenant may have in flight."""
    with open_files(4096), ExitStack() as stack:
        served = make_served()
        halves = [stack.enter_context(served.unix()) for _ in range(768)]
        for half in halves:
            half.sendall(HEAD + b"content-type: application/json\r\ncontent-length: 100\r\n\r\n" + b'{"command":')
        operator = stack.enter_context(served.unix())  # accepted after all the others
        for _ in range(10):
            assert ask(operator, HEALTH).status == 200
        created = ask(operator, b'PUT /v1/tenants/acme/sessions/s1 HTTP/1.1\r\ncontent-length: 12\r\n\r\n{"user":"u"}')
        assert created.status in (200, 201), created
        # The slowest made room for the others, and got an error.
        ended = answered(halves)
        assert 0 < len(ended) <= 768 - 512
        answer = read_answer(ended[0])
        assert (answer.status, json.loads(answer.body)["code"]) == (408, "request.timeout")


def test_idle_unauthenticated_tcp_connections_do_not_affect_the_unix_socket_and_known_clients(
    make_served: Start,
) -> None:
    served = make_served(open_files=256)
    with ExitStack() as stack:
        known = stack.enter_context(served.tcp())
        assert ask(known, served.authorised("GET", "/healthz")).status == 200
        strangers = [stack.enter_context(served.tcp()) for _ in range(400)]
        for _ in range(20):
            with served.unix() as operator:
                assert ask(operator, HEALTH).status == 200
                assert ask(operator, HEALTH.replace(b"healthz", b"readyz")).status == 200  # it reaches the engine
        assert ask(known, served.authorised("GET", "/healthz")).status == 200
        with served.tcp() as newcomer:
            assert ask(newcomer, served.authorised("GET", "/healthz")).status == 200
        descriptors = len(os.listdir(f"/proc/{served.daemon.pid}/fd"))
        assert descriptors < 256 - 64, "the rest is for runners, the engine and files"
        assert len(strangers) - len(answered(strangers)) <= 64 // 4


def test_connections_that_come_and_go_leave_nothing_behind(served: Served) -> None:
    before = len(os.listdir(f"/proc/{served.daemon.pid}/fd"))
    for _ in range(500 * SCALE):
        with served.tcp() as connection:
            connection.sendall(CHUNKED + b"5\r\nhal")
    with served.unix() as operator:
        assert ask(operator, HEALTH).status == 200
        for _ in range(100):  # the daemon takes a moment to notice a closed connection: poll until it has
            after = len(os.listdir(f"/proc/{served.daemon.pid}/fd"))
            if after <= before + OWN_DESCRIPTORS:
                break
            assert ask(operator, HEALTH).status == 200
    assert after <= before + OWN_DESCRIPTORS


def test_requests_that_arrive_byte_by_byte_are_ended_and_others_are_not(make_served: Start) -> None:
    served = make_served(wire__head_timeout_s=2, wire__body_timeout_s=2)
    with ExitStack() as stack:
        slow = [stack.enter_context(served.unix()) for _ in range(100 * SCALE)]
        for number, connection in enumerate(slow):
            connection.sendall(HEAD if number % 2 else HEAD + b"content-length: 10000\r\n\r\n")
        operator = stack.enter_context(served.unix())
        dripping = set(slow)
        while dripping:  # each byte would keep alive a connection with only an idle timeout
            assert ask(operator, HEALTH).status == 200
            for connection in answered(dripping, wait_s=0.1):
                answer = read_answer(connection)
                assert (answer.status, json.loads(answer.body)["code"]) == (408, "request.timeout")
                dripping.remove(connection)
            for connection in dripping:
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.send(b"x")


def test_websockets_that_never_read_neither_grow_the_daemon_nor_stop_its_calls(make_served: Start) -> None:
    served = make_served()
    with served.daemon.client() as client, ExitStack() as stack:
        client.ensure_sandbox("s1", "u1")
        flood = client.start_process("s1", ["yes", "x" * 1000])
        before = served.resident_bytes()
        path = f"/v1/tenants/default/sessions/s1/pty?process={flood.id}&offset=0"
        head = f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        head += "sec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
        opened = []
        for _ in range(200):
            connection = stack.enter_context(served.unix())
            connection.sendall(head.encode())
            opened.append(connection.recv(65_536)[:12])
        assert opened.count(b"HTTP/1.1 101") == 64
        for _ in range(20):
            assert client.exec("s1", "echo works").stdout == "works\n"
        assert served.resident_bytes() - before < ROOM_BYTES
    with served.daemon.client() as client:
        client.kill_process("s1", flood.id)
