"""Connections through an Egress without a container: decisions, addresses, changes of access, and its end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream

from memo.ids import TenantId
from sandboxd.errors import InvalidRequest
from sandboxd.models.network import AllowedHost, NetworkAccess
from sandboxd.network.egress import Egress, SandboxEgress
from sandboxd.network.host_names import IPAddress
from sandboxd.network.meter import MIB
from sandboxd.network_settings import NetworkOptions
from tests.unit.socket_byte_stream import SocketByteStream, connected

pytestmark = pytest.mark.anyio

TENANT = TenantId("acme")
SECRET = "ab" * 32


class FlippingResolver:
    """Answers with one address after the other, as a name server does that wants to be trusted first."""

    def __init__(self, *addresses: str) -> None:
        self.left = [ip_address(address) for address in addresses]

    async def resolve(self, host: str, port: int) -> list[IPAddress]:
        return [self.left.pop(0)]


class Inside(SocketByteStream):
    """The daemon's end of a connection that a process in a sandbox has opened."""

    def __init__(self, stream: SocketByteStream) -> None:
        super().__init__(stream._stream)
        self.is_closed = anyio.Event()

    def close(self) -> None:
        self.is_closed.set()


@asynccontextmanager
async def origin(
    answer: bytes = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", *, closes: bool = False
) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Yield the port of a server that answers every connection's first bytes, and what it received."""
    received: list[bytes] = []

    async def serve(stream: SocketStream) -> None:
        async with stream:
            received.append(await stream.receive())
            await stream.send(answer)
            if not closes:
                await anyio.sleep_forever()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port), received
        tasks.cancel_scope.cancel()


async def granted(egress: Egress, *hosts: AllowedHost) -> SandboxEgress:
    sandbox = egress.open(lambda _record: None)
    await sandbox.grant(await egress.plan(TENANT, NetworkAccess(allow=list(hosts))), SECRET)
    return sandbox


def plain_request(port: int) -> bytes:
    return f"GET http://name.test:{port}/path?q=1 HTTP/1.1\r\nHost: name.test:{port}\r\n\r\n".encode()


async def test_the_address_that_was_checked_is_the_one_connected_to() -> None:
    resolver = FlippingResolver("127.0.0.1", "127.0.0.2")
    async with origin() as (port, received), Egress(NetworkOptions(), resolver=resolver) as egress:
        sandbox = await granted(egress, AllowedHost(host="name.test", private=True))
        async with connected() as (client, here):
            sandbox.accept(Inside(here))
            await client.send(plain_request(port))
            assert (await client.receive()).startswith(b"HTTP/1.1 200")
        assert len(received) == 1
        assert [str(address) for address in resolver.left] == ["127.0.0.2"], "the name was looked up twice"


async def test_a_name_that_turns_private_is_refused() -> None:
    resolver = FlippingResolver("127.0.0.1")
    async with origin() as (port, received), Egress(NetworkOptions(), resolver=resolver) as egress:
        sandbox = await granted(egress, AllowedHost(host="name.test"))
        async with connected() as (client, here):
            sandbox.accept(Inside(here))
            await client.send(plain_request(port))
            assert (await client.receive()).startswith(b"HTTP/1.1 403")
        assert received == []
        [record] = sandbox.audit.since(0)
        assert (record.decision, record.method, record.path) == ("denied", "GET", "/path")
        assert egress.counts == {"denied": 1}


async def test_a_connection_that_is_no_longer_allowed_is_cut_and_another_one_goes_on() -> None:
    options = NetworkOptions.model_validate({"hosts": {"one.test": ["127.0.0.1"], "two.test": ["127.0.0.1"]}})
    one, two = AllowedHost(host="one.test", private=True), AllowedHost(host="two.test", private=True)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with origin(head) as (port, _), Egress(options) as egress:
        sandbox = await granted(egress, one, two)
        async with connected() as (first, here), connected() as (second, there):
            ends = Inside(here), Inside(there)
            for client, end, name in ((first, ends[0], "one"), (second, ends[1], "two")):
                sandbox.accept(end)
                await client.send(
                    f"GET http://{name}.test:{port}/ HTTP/1.1\r\nHost: {name}.test:{port}\r\n\r\n".encode()
                )
                assert (await client.receive()).startswith(b"HTTP/1.1 200")
            await sandbox.grant(await egress.plan(TENANT, NetworkAccess(allow=[two])), SECRET)
            await ends[0].is_closed.wait()
            assert not ends[1].is_closed.is_set()
            assert sandbox.audit.since(0)[0].reason == "the sandbox's network access was changed"


async def test_after_access_is_withdrawn_every_request_is_told_why() -> None:
    async with Egress(NetworkOptions()) as egress:
        sandbox = await granted(egress, AllowedHost(host="name.test"))
        sandbox.withdraw("the settings no longer permit it")
        assert sandbox.access is None
        async with connected() as (client, here):
            sandbox.accept(Inside(here))
            await client.send(plain_request(80))
            assert b"the settings no longer permit it" in await client.receive()


async def test_a_sandbox_that_has_moved_all_it_may_is_told_so() -> None:
    options = NetworkOptions.model_validate({"hosts": {"name.test": ["127.0.0.1"]}, "max_mb": 1})
    async with origin() as (port, received), Egress(options) as egress:
        sandbox = await granted(egress, AllowedHost(host="name.test", private=True))
        await sandbox.meter.take(2 * MIB, is_limited=False)
        async with connected() as (client, here):
            sandbox.accept(Inside(here))
            await client.send(plain_request(port))
            with anyio.fail_after(10):
                answer = await client.receive()
        assert answer.startswith(b"HTTP/1.1 403")
        assert b"has moved 2 MiB of the 1 MiB that it may" in answer
        assert received == []
        [record] = sandbox.audit.since(0)
        assert (record.host, record.decision) == ("name.test", "denied")


async def test_a_sandbox_that_opens_connections_without_end_waits_for_its_turn() -> None:
    options = NetworkOptions.model_validate({"hosts": {"name.test": ["127.0.0.1"]}, "rate_connections_s": 0.001})
    async with origin() as (port, received), Egress(options) as egress:
        sandbox = await granted(egress, AllowedHost(host="name.test", private=True))
        async with connected() as (first, here), connected() as (second, there):
            for client, end in ((first, here), (second, there)):
                sandbox.accept(Inside(end))
                await client.send(plain_request(port))
            assert (await first.receive()).startswith(b"HTTP/1.1 200")
            with anyio.move_on_after(0.2) as scope:
                await second.receive()
            assert scope.cancelled_caught, "the second connection of 1000 seconds did not wait"
            assert len(received) == 1


async def test_a_stream_that_arrives_while_the_daemon_closes_is_closed() -> None:
    async with Egress(NetworkOptions()) as egress:
        sandbox = await granted(egress, AllowedHost(host="name.test"))
    async with connected() as (_client, here):
        late = Inside(here)
        sandbox.accept(late)
        assert late.is_closed.is_set()


async def test_a_client_that_is_silent_is_cut() -> None:
    async with Egress(NetworkOptions(head_timeout_s=0.05)) as egress:
        sandbox = await granted(egress, AllowedHost(host="name.test"))
        async with connected() as (client, here):
            end = Inside(here)
            sandbox.accept(end)
            await client.send(b"GET http://name")
            await end.is_closed.wait()
        assert sandbox.audit.since(0)[0].reason == "its request did not arrive in time"


class Held(Inside):
    """A connection whose other end has not read everything yet."""

    def __init__(self, stream: SocketByteStream) -> None:
        super().__init__(stream)
        self.is_waited_for, self.delivered = anyio.Event(), anyio.Event()

    async def wait_delivered(self) -> None:
        self.is_waited_for.set()
        await self.delivered.wait()


async def test_a_connection_is_closed_only_once_a_slow_client_can_read_all_of_it() -> None:
    options = NetworkOptions.model_validate({"hosts": {"name.test": ["127.0.0.1"]}})
    async with origin() as (port, _), Egress(options) as egress:
        sandbox = await granted(egress, AllowedHost(host="name.test", private=True))
        async with connected() as (client, here):
            sandbox.accept(end := Held(here))
            await client.send(plain_request(port))
            with anyio.fail_after(10):
                await end.is_waited_for.wait()
                assert not end.is_closed.is_set()
                end.delivered.set()
                await end.is_closed.wait()


async def test_a_client_learns_at_once_that_its_answer_was_cut() -> None:
    options = NetworkOptions.model_validate({"hosts": {"name.test": ["127.0.0.1"]}})
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"
    async with origin(cut, closes=True) as (port, _), Egress(options) as egress:
        sandbox = await granted(egress, AllowedHost(host="name.test", private=True))
        async with connected() as (client, here):
            sandbox.accept(end := Held(here))
            await client.send(plain_request(port))
            with anyio.fail_after(10):
                await end.is_closed.wait()
        assert sandbox.audit.since(0)[0].reason == "the host ended its answer too early"


async def test_a_setting_that_no_request_could_use_is_refused_at_the_start() -> None:
    with pytest.raises(InvalidRequest, match=r"presets\.git"):
        Egress(NetworkOptions(presets={"git": ("*",)}))


async def test_a_tunnel_to_a_host_that_refuses_is_answered_with_the_reason() -> None:
    options = NetworkOptions.model_validate({"hosts": {"name.test": ["127.0.0.1"]}})
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)
    async with Egress(options) as egress:
        sandbox = await granted(egress, AllowedHost(host="name.test", private=True))
        async with connected() as (client, here):
            sandbox.accept(Inside(here))
            await client.send(f"CONNECT name.test:{port} HTTP/1.1\r\nHost: name.test:{port}\r\n\r\n".encode())
            assert (await client.receive()).startswith(b"HTTP/1.1 502")
        assert "connection refused" in (sandbox.audit.since(0)[0].reason or "")
