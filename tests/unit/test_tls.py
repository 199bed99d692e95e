"""TLS on the TCP listener: which certificates are taken, and what a connection may do before and after its handshake.

The bounds of a connection are those of `test_api_connection.py`; here they are seen through TLS.
"""

from __future__ import annotations

import gc
import io
import json
import socket
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import anyio
import pytest
from anyio.streams.tls import TLSStream

from sandboxd.api.connection import MAX_HEAD_BYTES, HttpConnection
from sandboxd.api.guard import allowed_hosts
from sandboxd.api.tls import read_tls
from sandboxd.errors import InvalidRequest
from sandboxd.settings import read_settings
from sandboxd.wire_limits import WireLimits
from tests.certificates import make_pair
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

EXEC = "/v1/tenants/acme/sessions/s1/exec"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_pair(tmp_path_factory.mktemp("tls"), "server")


@pytest.fixture(scope="module")
def trusting(pair: tuple[Path, Path]) -> ssl.SSLContext:
    """A client's context that trusts this certificate and no other."""
    return ssl.create_default_context(cafile=pair[0])


@pytest.fixture
async def world(tmp_path: Path, pair: tuple[Path, Path]) -> AsyncIterator[World]:
    async with serving(tmp_path, tls=read_tls(*pair), drain_s=60) as world:
        yield world


def port_of(world: World) -> int:
    return int(world.url.rpartition(":")[2])


async def connect(world: World, trusting: ssl.SSLContext) -> TLSStream:
    return await anyio.connect_tcp("127.0.0.1", port_of(world), tls_hostname="127.0.0.1", ssl_context=trusting)


def request(world: World, method: str, target: str, body: bytes = b"", *lines: str) -> bytes:
    host = f"host: 127.0.0.1:{port_of(world)}"
    token = f"authorization: Bearer {world.token}"
    head = [f"{method} {target} HTTP/1.1", host, token, f"content-length: {len(body)}", *lines, "", ""]
    return "\r\n".join(head).encode() + body


async def read_status(stream: TLSStream) -> int:
    data = b""
    with anyio.fail_after(20):
        while b"\r\n" not in data:
            data += await stream.receive()
    return int(data.split()[1])


async def test_a_client_that_verifies_the_certificate_runs_commands_and_moves_large_files(
    world: World, trusting: ssl.SSLContext
) -> None:
    headers = {"authorization": f"Bearer {world.token}"}
    session = f"{world.url}/v1/tenants/acme/sessions/s1"
    connector = aiohttp.TCPConnector(ssl=trusting)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as http:
        async with http.put(f"{session}/sandbox", json={"user": "u1"}) as response:
            assert response.status == 201
        async with http.post(f"{session}/exec", json={"command": ["echo", "hi"]}) as response:
            assert (await response.json())["stdout"] == "hi\n"
        content = bytes(range(256)) * 20_000
        async with http.put(f"{session}/files?path=/workspace/big", data=io.BytesIO(content)) as response:
            assert response.status == 200, await response.text()
        async with http.get(f"{session}/files?path=/workspace/big") as response:
            assert await response.read() == content


async def test_pythons_ssl_client_verifies_the_name_and_needs_the_token(world: World, trusting: ssl.SSLContext) -> None:
    def status(raw: bytes) -> int:
        plain = socket.create_connection(("127.0.0.1", port_of(world)), timeout=20)
        with plain, trusting.wrap_socket(plain, server_hostname="127.0.0.1") as secured:
            assert secured.version() in ("TLSv1.2", "TLSv1.3")
            secured.sendall(raw)
            return int(secured.recv(65_536).split()[1])

    health = request(world, "GET", "/healthz")
    assert await anyio.to_thread.run_sync(status, health) == 200
    assert await anyio.to_thread.run_sync(status, health.replace(b"ttt", b"xxx")) == 401
    assert await anyio.to_thread.run_sync(status, health.replace(b"127.0.0.1", b"evil.test")) == 403


async def test_a_client_that_does_not_trust_the_certificate_fails_the_handshake(world: World) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await connect(world, ssl.create_default_context())


async def test_the_tcp_listener_answers_nothing_without_tls_and_the_unix_socket_stays_plain(world: World) -> None:
    async with await anyio.connect_tcp("127.0.0.1", port_of(world)) as stream:
        await stream.send(request(world, "GET", "/healthz"))
        data = b""
        with anyio.fail_after(20), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                data += await stream.receive()
        assert b"HTTP" not in data
    async with await anyio.connect_unix(world.socket) as stream:
        await stream.send(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert (await stream.receive()).startswith(b"HTTP/1.1 200 ")


async def test_pipelined_requests_over_tls_are_answered_in_order(world: World, trusting: ssl.SSLContext) -> None:
    async with await connect(world, trusting) as stream:
        created = request(world, "PUT", "/v1/tenants/acme/sessions/s1/sandbox", b'{"user":"u1"}')
        bodies = [json.dumps({"command": ["echo", f"word-{number}-end"]}).encode() for number in range(20)]
        await stream.send(created + b"".join(request(world, "POST", EXEC, body) for body in bodies))
        data = b""
        with anyio.fail_after(20):
            while b"word-19-end" not in data:
                data += await stream.receive()
    places = [data.index(b"word-%d-end" % number) for number in range(20)]
    assert places == sorted(places)


async def test_an_endless_head_is_refused_over_tls(world: World, trusting: ssl.SSLContext) -> None:
    async with await connect(world, trusting) as stream:
        await stream.send(request(world, "GET", "/healthz", b"", "x: " + "a" * MAX_HEAD_BYTES))
        assert await read_status(stream) == 431


@pytest.mark.parametrize("start", [b"0\r\nx: ", b"5;x="], ids=["trailer", "chunk extension"])
async def test_a_trailer_or_chunk_extension_over_the_bound_is_refused_over_tls(
    world: World, trusting: ssl.SSLContext, start: bytes
) -> None:
    head = request(world, "POST", EXEC).replace(b"content-length: 0", b"transfer-encoding: chunked")
    async with await connect(world, trusting) as stream:
        await stream.send(head + start)
        await stream.send(b"a" * (2 * MAX_HEAD_BYTES))
        assert await read_status(stream) == 400


async def test_more_pipelined_requests_than_are_parsed_at_once_are_all_answered_over_tls(
    world: World, trusting: ssl.SSLContext
) -> None:
    count, data = 3000, b""
    stream = await connect(world, trusting)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.send, request(world, "GET", "/healthz") * count)
        with anyio.fail_after(60):
            while data.count(b"HTTP/1.1 200 ") < count:
                data += await stream.receive()
    await anyio.aclose_forcefully(stream)


async def test_a_body_that_trickles_in_over_tls_is_ended(
    tmp_path: Path, pair: tuple[Path, Path], trusting: ssl.SSLContext
) -> None:
    wire = WireLimits(body_timeout_s=1, body_min_bytes_per_s=100)
    async with serving(tmp_path, tls=read_tls(*pair), wire=wire) as world:
        stream = await connect(world, trusting)
        await stream.send(request(world, "POST", EXEC, b"{").replace(b"length: 1", b"length: 1000"))
        assert await read_status(stream) == 408
        await anyio.aclose_forcefully(stream)


async def test_connections_without_a_handshake_are_capped_and_time_out(
    tmp_path: Path, pair: tuple[Path, Path], trusting: ssl.SSLContext
) -> None:
    wire = WireLimits(max_unauthenticated=4, head_timeout_s=2)
    async with serving(tmp_path, tls=read_tls(*pair), wire=wire) as world, AsyncExitStack() as stack:
        known = await connect(world, trusting)
        stack.push_async_callback(anyio.aclose_forcefully, known)
        await known.send(request(world, "GET", "/healthz"))
        assert await read_status(known) == 200
        silent = [
            await stack.enter_async_context(await anyio.connect_tcp("127.0.0.1", port_of(world))) for _ in range(8)
        ]
        for stream in silent:  # the first four make room for the others, which time out
            with anyio.fail_after(20), pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                await stream.receive()
        await known.send(request(world, "GET", "/healthz"))
        assert await read_status(known) == 200


async def test_the_drain_waits_neither_for_an_idle_client_nor_for_a_handshake(
    tmp_path: Path, pair: tuple[Path, Path], trusting: ssl.SSLContext
) -> None:
    with anyio.fail_after(25):
        async with AsyncExitStack() as clients, serving(tmp_path, tls=read_tls(*pair), drain_s=60) as world:
            idle = await connect(world, trusting)
            clients.push_async_callback(anyio.aclose_forcefully, idle)
            await idle.send(request(world, "GET", "/healthz"))
            assert await read_status(idle) == 200
            silent = await anyio.connect_tcp("127.0.0.1", port_of(world))
            clients.push_async_callback(anyio.aclose_forcefully, silent)


async def test_a_closed_tls_connection_is_freed_without_the_garbage_collector(
    world: World, trusting: ssl.SSLContext
) -> None:
    health = request(world, "GET", "/healthz")
    gc.collect()
    gc.disable()
    try:
        for start in (b"GET /" + b"a" * 60_000, health, health * 500, b"GARBAGE\r\n\r\n"):
            for _ in range(5):
                stream = await connect(world, trusting)
                await stream.send(start)
                await anyio.aclose_forcefully(stream)
                async with await anyio.connect_tcp("127.0.0.1", port_of(world)) as plain:
                    await plain.send(start)
        with anyio.fail_after(20):
            while any(isinstance(thing, HttpConnection) for thing in gc.get_objects()):
                await anyio.sleep(0.02)
    finally:
        gc.enable()


def refusal(cert: Path, key: Path) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read_tls(cert, key)
    return str(caught.value)


def test_a_pair_that_cannot_be_used_is_refused_in_one_sentence(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    cert, key = pair
    gone = tmp_path / "gone"
    assert refusal(gone, key) == f"cannot read --tls-cert {gone}: No such file or directory; correct --tls-cert"
    assert refusal(cert, gone) == f"cannot read --tls-key {gone}: No such file or directory; correct --tls-key"
    assert refusal(tmp_path, key) == f"cannot read --tls-cert {tmp_path}: Is a directory; correct --tls-cert"
    _, other = make_pair(tmp_path, "other")
    assert "the key does not belong to the certificate" in refusal(cert, other)
    assert "is not a PEM file of its kind" in refusal(key, key)
    text = tmp_path / "text"
    text.write_text("no certificate\n")
    text.chmod(0o600)
    assert "is not a PEM file of its kind" in refusal(text, key)
    assert "is not a PEM file of its kind" in refusal(cert, text)


def test_a_key_that_others_can_read_or_that_needs_a_password_is_refused(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    cert, key = pair
    locked = tmp_path / "locked"
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # other users cannot enter tmp_path
        Path(directory).chmod(0o755)
        public = Path(directory, "public")
        public.write_bytes(key.read_bytes())
        public.chmod(0o644)
        assert refusal(cert, public).endswith(f"every user of this host can read it; run `chmod 600 {public}`")
    encrypt = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(encrypt, check=True, capture_output=True, timeout=60)
    locked.chmod(0o600)
    assert "it is encrypted; decrypt it with" in refusal(cert, locked)


def test_a_certificate_a_key_and_tcp_must_be_given_together(tmp_path: Path) -> None:
    cert, key, token = tmp_path / "cert", tmp_path / "key", tmp_path / "token"
    tcp = {"tcp": "127.0.0.1:8443", "token_file": token}
    for options, sentence in (
        ({**tcp, "tls_cert": cert}, "cannot use --tls-cert alone: TLS needs a certificate and its key; give --tls-key"),
        ({**tcp, "tls_key": key}, "cannot use --tls-key alone: TLS needs a certificate and its key; give --tls-cert"),
        ({"tls_cert": cert, "tls_key": key}, "cannot use --tls-cert without TCP: the unix socket has no TLS; give"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            read_settings(**options)
        assert str(caught.value).startswith(sentence)
    assert read_settings(**tcp, tls_cert=cert, tls_key=key).tls_key == key


def test_the_host_may_leave_out_the_port_of_its_scheme() -> None:
    assert "sandbox.test" in allowed_hosts("sandbox.test", 443, is_tls=True)
    assert "sandbox.test" not in allowed_hosts("sandbox.test", 443)
    assert "sandbox.test" in allowed_hosts("sandbox.test", 80)
    assert "sandbox.test" not in allowed_hosts("sandbox.test", 8443, is_tls=True)
