"""The server name of a TLS greeting: from every client, in every fragmentation, and from nothing else."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandboxd.network.client_hello import MAX_HELLO_BYTES, HelloReader, HelloState
from tests.certificates import make_pair

TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
VERSIONS = [(TLS_1_2, TLS_1_2), (TLS_1_3, TLS_1_3), (TLS_1_2, TLS_1_3)]


def client_context(lowest: ssl.TLSVersion = TLS_1_2, highest: ssl.TLSVersion = TLS_1_3) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version, context.maximum_version = lowest, highest
    return context


def greeting(context: ssl.SSLContext, name: str | None, session: ssl.SSLSession | None = None) -> bytes:
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name, session=session)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def read(data: bytes, piece_bytes: int | None = None) -> HelloReader:
    reader = HelloReader()
    step = piece_bytes or max(len(data), 1)
    for start in range(0, len(data), step):
        if reader.state is HelloState.NEEDS_MORE:
            reader.feed(data[start : start + step])
    return reader


@pytest.mark.parametrize(("lowest", "highest"), VERSIONS)
@pytest.mark.parametrize("name", ["example.org", "xn--bcher-kva.example", "localhost", None])
@pytest.mark.parametrize("piece_bytes", [None, 1, 7, 100])
def test_the_server_name_of_a_client_is_read_in_any_fragmentation(
    lowest: ssl.TLSVersion, highest: ssl.TLSVersion, name: str | None, piece_bytes: int | None
) -> None:
    data = greeting(client_context(lowest, highest), name)
    reader = read(data, piece_bytes)
    assert (reader.state, reader.server_name) == (HelloState.COMPLETE, name)
    assert reader.data == data


def test_a_greeting_without_its_last_byte_needs_more() -> None:
    data = greeting(client_context(), "example.org")
    reader = read(data[:-1])
    assert (reader.state, reader.data) == (HelloState.NEEDS_MORE, data[:-1])
    reader.feed(b"")
    assert reader.state is HelloState.NEEDS_MORE
    reader.feed(data[-1:])
    assert (reader.state, reader.server_name) == (HelloState.COMPLETE, "example.org")


def test_a_greeting_in_many_records_is_read() -> None:
    data = greeting(client_context(), "example.org")
    message = data[5:]
    pieces = [message[start : start + 10] for start in range(0, len(message), 10)]
    records = b"".join(b"\x16\x03\x01" + struct.pack(">H", len(piece)) + piece for piece in pieces)
    reader = read(records)
    assert (reader.state, reader.server_name, reader.data) == (HelloState.COMPLETE, "example.org", records)


def test_what_follows_the_greeting_is_kept() -> None:
    early = greeting(client_context(), "example.org") + b"\x17\x03\x03" + b"early data" * 10_000
    reader = read(early)
    assert (reader.state, reader.server_name, reader.data) == (HelloState.COMPLETE, "example.org", early)


def test_the_name_is_spelled_as_in_a_target() -> None:
    data = greeting(client_context(), "example.org").replace(b"example.org", b"EXample.Or.")
    assert read(data).server_name == "example.or"


def test_protocol_offers_do_not_matter() -> None:
    context = client_context()
    context.set_alpn_protocols(["h2", "http/1.1"])
    assert read(greeting(context, "example.org")).server_name == "example.org"


@pytest.mark.parametrize("version", [TLS_1_2, TLS_1_3])
def test_a_client_that_resumes_a_session_is_read(version: ssl.TLSVersion, tmp_path: Path) -> None:
    context = client_context(version, version)
    session = _session(context, tmp_path)
    assert session is not None
    data = greeting(context, "example.org", session)
    assert len(data) > len(greeting(context, "example.org"))
    assert read(data, 1).server_name == "example.org"


def _session(context: ssl.SSLContext, directory: Path) -> ssl.SSLSession | None:
    cert, key = make_pair(directory, "server")
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(cert, key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to_client, to_server, server_hostname="example.org")
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    server.write(b"x")
    assert client.read(1) == b"x"  # with it, TLS 1.3 reads the ticket
    return client.session


def test_openssl_as_a_client_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-servername", "from-openssl.example"]
        client = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            connection, _ = server.accept()
            with connection:
                reader = HelloReader()
                while reader.state is HelloState.NEEDS_MORE:
                    data = connection.recv(50)
                    assert data
                    reader.feed(data)
        finally:
            client.kill()
            client.wait()
    assert (reader.state, reader.server_name) == (HelloState.COMPLETE, "from-openssl.example")


def _sslv2_greeting(version: bytes) -> bytes:
    ciphers = b"\x00\xc0\x2f\x00\x00\x9c"
    body = b"\x01" + version + struct.pack(">HHH", len(ciphers), 0, 16) + ciphers + bytes(range(16))
    return struct.pack(">H", 0x8000 | len(body)) + body


def test_a_greeting_in_the_form_of_sslv2_has_no_server_name() -> None:
    reader = read(_sslv2_greeting(b"\x03\x03"), 1)
    assert reader.server_name is None
    assert reader.state is not HelloState.NEEDS_MORE


HELLO = greeting(client_context(), "example.org")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", id="HTTP"),
        pytest.param(b"CONNECT example.org:443 HTTP/1.1\r\n\r\n", id="CONNECT"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="SSH"),
        pytest.param(b"\x15\x03\x01\x00\x02\x02\x28", id="fatal alert"),
        pytest.param(b"\x15\x03\x01\x00\x02\x01\x00", id="close notify"),
        pytest.param(b"\x17\x03\x03\x00\x05hello", id="application data"),
        pytest.param(b"\x14\x03\x03\x00\x01\x01", id="change cipher spec"),
        pytest.param(b"\x16\x03\x03\x00\x04\x02\x00\x00\x00", id="a server's greeting"),
        pytest.param(_sslv2_greeting(b"\x00\x02"), id="SSLv2"),
        pytest.param(HELLO.replace(b"example.org", b"ex\0mple.org"), id="NUL in the name"),
        pytest.param(HELLO.replace(b"example.org", b"ex\xe4mple.org"), id="name not ASCII"),
        pytest.param(bytes(100), id="zeros"),
        pytest.param(b"\xff" * 100, id="ones"),
    ],
)
@pytest.mark.parametrize("piece_bytes", [None, 1])
def test_anything_else_is_not_tls(data: bytes, piece_bytes: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    hook = sys.unraisablehook
    reader = read(data, piece_bytes)
    assert (reader.state, reader.server_name) == (HelloState.NOT_TLS, None)
    assert data.startswith(reader.data)
    assert sys.unraisablehook is hook
    assert capsys.readouterr().err == ""


def test_a_client_older_than_tls_1_2_is_refused() -> None:
    legacy = bytearray(greeting(client_context(TLS_1_2, TLS_1_2), "example.org"))
    legacy[9:11] = b"\x03\x01"  # the client's version, after the headers of record and message
    assert read(bytes(legacy)).state is HelloState.NOT_TLS


def test_a_greeting_that_never_ends_is_refused_at_the_bound() -> None:
    endless = (b"\x16\x03\x01\x00\x04\x01\x01\xff\x00" + (b"\x16\x03\x01\x10\x00" + bytes(4096)) * 9)[:MAX_HELLO_BYTES]
    assert read(endless[:-1], 1000).state is HelloState.NEEDS_MORE
    reader = read(endless, 1000)
    assert reader.state is HelloState.NOT_TLS
    assert len(reader.data) == MAX_HELLO_BYTES


def test_a_reader_that_has_decided_takes_no_more() -> None:
    reader = read(HELLO)
    with pytest.raises(RuntimeError):
        reader.feed(b"more")
    assert reader.data == HELLO


@given(st.binary(max_size=300), st.integers(1, 50))
@example(b"\x16\x03\x01\x00\x00" * 40, 3)
@example(b"\x80\x2e\x01\x03\x03" + bytes(50), 1)
def test_garbage_raises_nothing_and_names_no_server(data: bytes, piece_bytes: int) -> None:
    reader = read(data, piece_bytes)
    assert reader.server_name is None
    assert data.startswith(reader.data)


@given(st.integers(0, len(HELLO) - 1), st.integers(0, 255), st.integers(1, 400))
def test_a_damaged_greeting_raises_nothing_and_reads_the_same_in_pieces(
    place: int, byte: int, piece_bytes: int
) -> None:
    data = HELLO[:place] + bytes([byte]) + HELLO[place + 1 :]
    whole, pieces = read(data), read(data, piece_bytes)
    assert (whole.state, whole.server_name) == (pieces.state, pieces.server_name)
