"""The authority of a sandbox and TLS over any stream: who accepts its certificates, and what a cut connection means."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import anyio
import pytest
from cryptography import x509

from sandboxd.errors import InvalidRequest
from sandboxd.network.byte_stream import ByteStream
from sandboxd.network.certificates import SandboxAuthority, trust_bundle
from sandboxd.network.tls_stream import TlsStream, verifying_context, wrap_client, wrap_server
from tests.certificates import make_pair
from tests.unit.socket_byte_stream import SocketByteStream, connected

pytestmark = pytest.mark.anyio

SECRET = "the-sandbox's-secret"


def trusting(authority: SandboxAuthority) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=authority.certificate_pem.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@asynccontextmanager
async def tls_pair(
    server: ssl.SSLContext, client: ssl.SSLContext, host: str
) -> AsyncIterator[tuple[TlsStream, TlsStream, SocketByteStream]]:
    """Yield the server's and the client's end of a TLS connection, and the server's stream below."""
    ends: list[TlsStream] = []

    async def answer(stream: ByteStream) -> None:
        ends.append(await wrap_server(stream, server))

    async with connected() as (here, there):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer, here)
            end = await wrap_client(there, host, client)
        yield ends[0], end, here


async def test_a_client_that_trusts_the_authority_accepts_its_hosts() -> None:
    authority = SandboxAuthority(SECRET)
    for host in ("api.example.com", "127.0.0.1", "::1", "a" * 63 + "." + "b" * 63 + ".example"):
        async with tls_pair(await authority.context_for(host), trusting(authority), host) as (server, client, _):
            await client.send(b"hello")
            assert await server.receive() == b"hello"


async def test_a_certificate_is_for_one_host_only() -> None:
    authority = SandboxAuthority(SECRET)
    context = await authority.context_for("api.example.com")
    with pytest.raises(ExceptionGroup) as raised:
        async with tls_pair(context, trusting(authority), "other.example.com"):
            pass
    assert raised.group_contains(ssl.SSLCertVerificationError, match="Hostname mismatch")


async def test_a_sandbox_does_not_trust_the_authority_of_another_one() -> None:
    context = await SandboxAuthority("another secret").context_for("api.example.com")
    with pytest.raises(ExceptionGroup) as raised:
        async with tls_pair(context, trusting(SandboxAuthority(SECRET)), "api.example.com"):
            pass
    assert raised.group_contains(ssl.SSLCertVerificationError)


async def test_a_restarted_daemon_is_the_same_authority() -> None:
    before, after = SandboxAuthority(SECRET), SandboxAuthority(SECRET)
    assert before.certificate_pem == after.certificate_pem
    assert before.certificate_pem != SandboxAuthority("another secret").certificate_pem
    async with tls_pair(await after.context_for("h.example"), trusting(before), "h.example"):
        pass


def test_the_authority_signs_hosts_only_and_names_nobody() -> None:
    certificate = x509.load_pem_x509_certificate(SandboxAuthority(SECRET).certificate_pem)
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.digital_signature) == (True, False)
    assert certificate.subject.rfc4514_string() == "CN=sandboxd credentials of this sandbox"
    now = datetime.now(UTC)
    assert certificate.not_valid_before_utc < now < certificate.not_valid_after_utc - timedelta(days=3650)


async def leaf_of(authority: SandboxAuthority, host: str) -> x509.Certificate:
    async with tls_pair(await authority.context_for(host), trusting(authority), host) as (_, client, _):
        der = client.ssl_object.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der)


async def test_a_hosts_certificate_is_short_lived_and_never_an_authority() -> None:
    leaf = await leaf_of(SandboxAuthority(SECRET), "api.example.com")
    assert leaf.not_valid_after_utc - leaf.not_valid_before_utc <= timedelta(days=90)
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["api.example.com"]


async def test_a_context_is_kept_and_made_again_before_its_certificate_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority = SandboxAuthority(SECRET)
    first = await authority.context_for("api.example.com")
    assert await authority.context_for("api.example.com") is first
    monkeypatch.setattr("sandboxd.network.certificates._RENEW_BEFORE", timedelta(days=31))
    assert await authority.context_for("api.example.com") is not first


async def test_the_number_of_kept_contexts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.network.certificates._MAX_LEAVES", 2)
    authority = SandboxAuthority(SECRET)
    contexts = [await authority.context_for(f"{n}.example") for n in range(3)]
    assert await authority.context_for("2.example") is contexts[2]
    assert await authority.context_for("0.example") is not contexts[0]


async def test_no_descriptor_stays_open_and_only_http_1_is_offered() -> None:
    authority = SandboxAuthority(SECRET)
    await authority.context_for("first.example")  # starts a worker thread
    before = set(os.listdir("/proc/self/fd"))
    context = await authority.context_for("second.example")
    assert set(os.listdir("/proc/self/fd")) == before
    client = trusting(authority)
    client.set_alpn_protocols(["h2", "http/1.1"])
    async with tls_pair(context, client, "second.example") as (server, _, _):
        assert server.ssl_object.selected_alpn_protocol() == "http/1.1"


async def test_an_old_protocol_version_is_refused() -> None:
    context = await SandboxAuthority(SECRET).context_for("h.example")
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_bundle_has_the_hosts_the_extra_and_the_sandboxs_certificates_and_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, _ = make_pair(tmp_path, "host")
    monkeypatch.setenv("SSL_CERT_FILE", str(host))
    extra, key = make_pair(tmp_path, "extra")
    extra.write_bytes(key.read_bytes() + extra.read_bytes() + host.read_bytes())
    authority = SandboxAuthority(SECRET)
    bundle = trust_bundle(authority.certificate_pem, [extra])
    assert b"PRIVATE KEY" not in bundle
    found = x509.load_pem_x509_certificates(bundle)
    wanted = [
        *x509.load_pem_x509_certificates(host.read_bytes()),
        *x509.load_pem_x509_certificates(extra.read_bytes())[:1],
        x509.load_pem_x509_certificate(authority.certificate_pem),
    ]
    assert found == wanted
    assert ssl.create_default_context(cadata=bundle.decode()).cert_store_stats()["x509"] == 3


def test_a_bundle_without_a_ca_file_of_the_host_has_the_certificates_of_its_directory_or_of_certifi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = SandboxAuthority(SECRET).certificate_pem
    cert, _ = make_pair(tmp_path, "one")
    paths = ssl.get_default_verify_paths()
    directory = paths._replace(cafile="", capath=str(tmp_path))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: directory)
    assert trust_bundle(pem).count(b"BEGIN") > 50
    cert.rename(tmp_path / "0123abcd.0")
    assert trust_bundle(pem).count(b"BEGIN") == 2


def test_an_extra_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for use in (partial(trust_bundle, b""), verifying_context):
        with pytest.raises(InvalidRequest, match=r"cannot use the CA file .*empty.pem"):
            use([tmp_path / "empty.pem"])
        with pytest.raises(InvalidRequest, match=r"absent.pem: No such file"):
            use([tmp_path / "absent.pem"])


async def test_a_client_verifies_the_host_with_an_extra_authority_only(tmp_path: Path) -> None:
    authority = SandboxAuthority(SECRET)
    extra = tmp_path / "ca.pem"
    extra.write_bytes(authority.certificate_pem)
    context = await authority.context_for("127.0.0.1")
    async with tls_pair(context, verifying_context([extra]), "127.0.0.1"):
        pass
    with pytest.raises(ExceptionGroup) as raised:
        async with tls_pair(context, verifying_context(), "127.0.0.1"):
            pass
    assert raised.group_contains(ssl.SSLCertVerificationError, match="unable to get local issuer certificate")


@asynccontextmanager
async def plain_pair() -> AsyncIterator[tuple[TlsStream, TlsStream, SocketByteStream]]:
    authority = SandboxAuthority(SECRET)
    async with tls_pair(await authority.context_for("h.example"), trusting(authority), "h.example") as pair:
        yield pair


async def test_each_direction_ends_on_its_own() -> None:
    async with plain_pair() as (server, client, _):
        await client.send(b"question")
        await client.send_eof()
        assert await server.receive() == b"question"
        assert await server.receive() == b""
        await server.send(b"answer")
        await server.send_eof()
        assert await client.receive() == b"answer"
        assert await client.receive() == b""
        assert await client.receive() == b""


async def test_a_connection_that_is_cut_is_an_error_and_not_an_end() -> None:
    async with plain_pair() as (server, client, below):
        await server.send(b"half an ans")
        await below.send_eof()
        assert await client.receive() == b"half an ans"
        for _ in range(2):
            with pytest.raises(ssl.SSLError):
                await client.receive()


async def test_much_data_goes_both_ways_at_once() -> None:
    """Neither side reads before it has sent, but for the other task: sending must never wait for its own reader."""
    block = os.urandom(100_000)
    count = 100

    async def send(stream: TlsStream) -> None:
        for _ in range(count):
            await stream.send(block)
        await stream.send_eof()

    async def receive(stream: TlsStream) -> None:
        size = 0
        while data := await stream.receive():
            size += len(data)
        assert size == count * len(block)

    async with plain_pair() as (server, client, _), anyio.create_task_group() as tasks:
        for stream in (server, client):
            tasks.start_soon(send, stream)
            tasks.start_soon(receive, stream)


async def test_garbage_instead_of_tls_is_an_error() -> None:
    context = await SandboxAuthority(SECRET).context_for("h.example")
    async with connected() as (here, there):
        await there.send(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ssl.SSLError):
            await wrap_server(here, context)


async def test_an_end_that_the_other_side_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandboxd.network.tls_stream._END_TIMEOUT_S", 0.05)
    async with plain_pair() as (server, _, _):
        with anyio.move_on_after(0.2):
            while True:
                await server.send(bytes(1_000_000))
        await server.send_eof()  # returns, although the buffers of the connection are full
