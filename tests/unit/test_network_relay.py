"""The small parts of a connection: the relay, the meter, the audit log and the way to an origin."""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address

import anyio
import pytest
from anyio.abc import SocketAttribute

from sandboxd.network.addresses import Unreachable
from sandboxd.network.audit import AuditDraft, AuditLog
from sandboxd.network.meter import MIB, Meter, SandboxEnd
from sandboxd.network.origin import connect_to
from sandboxd.network.relay import relay
from sandboxd.network.rules import Denied
from tests.unit.socket_byte_stream import connected

pytestmark = pytest.mark.anyio

LOOPBACK = ip_address("127.0.0.1")


async def test_bytes_and_ends_pass_both_ways() -> None:
    async with connected() as (client, one), connected() as (other, server), anyio.create_task_group() as tasks:
        tasks.start_soon(relay, one, other)
        await client.send(b"request")
        await client.send_eof()
        assert await server.receive() == b"request"
        assert await server.receive() == b""
        await server.send(b"answer")
        assert await client.receive() == b"answer"
        await server.send_eof()
        assert await client.receive() == b""


async def test_a_side_that_breaks_ends_the_relay_with_its_error() -> None:
    class Broken:
        async def receive(self) -> bytes:
            raise anyio.BrokenResourceError

        async def send(self, data: bytes) -> None: ...
        async def send_eof(self) -> None: ...

    async with connected() as (one, _client):
        with pytest.raises(anyio.BrokenResourceError):
            await relay(one, Broken())


async def test_the_meter_counts_what_enters_and_leaves_a_sandbox() -> None:
    meter, draft = Meter(), AuditDraft("example.org", 443)
    async with connected() as (client, here):
        end = SandboxEnd(here, meter, draft, lambda: None)
        await client.send(b"12345")
        assert await end.receive() == b"12345"
        await end.send(b"123")
        end.unread(b"45")
        assert await end.receive() == b"45"
    assert (draft.bytes_out, draft.bytes_in, meter.total_bytes) == (5, 3, 8)


async def test_a_sandbox_that_has_moved_all_it_may_is_refused() -> None:
    meter = Meter(max_mb=1)
    await meter.take(MIB)
    with pytest.raises(Denied, match="1 MiB of the 1 MiB"):
        meter.check()
    with pytest.raises(Denied):
        await meter.take(1)


async def test_a_rate_makes_later_bytes_wait_and_lets_an_idle_sandbox_burst() -> None:
    meter = Meter(rate_mb_s=1)
    with anyio.fail_after(5):
        await meter.take(MIB // 8)  # within the burst
    with anyio.move_on_after(0.2) as scope:
        await meter.take(60 * MIB)
    assert scope.cancelled_caught, "a minute's allowance moved at once"


async def test_a_refusal_is_counted_and_not_refused_itself() -> None:
    meter = Meter(max_mb=1)
    await meter.take(2 * MIB, is_limited=False)
    assert meter.total_bytes == 2 * MIB


async def test_connections_beyond_the_rate_wait() -> None:
    meter = Meter(rate_connections_s=10)
    with anyio.fail_after(5):
        for _ in range(10):
            await meter.begin()  # within the burst
    with anyio.move_on_after(0.2) as scope:
        for _ in range(1000):
            await meter.begin()
    assert scope.cancelled_caught, "100 seconds of connections began at once"


async def test_the_log_keeps_the_newest_records_and_counts_the_others() -> None:
    log = AuditLog(capacity=3)
    for number in range(5):
        log.add(AuditDraft(f"host{number}", 443), "allowed")
    assert [record.host for record in log.since(0)] == ["host2", "host3", "host4"]
    assert [record.id for record in log.since(4)] == [5]
    assert log.since(5) == []
    assert log.dropped == 2


async def test_a_reader_of_an_earlier_daemons_log_gets_the_new_one_from_its_start() -> None:
    log = AuditLog()
    got: list[str] = []

    async def follow() -> None:
        got.extend(record.host for record in await log.wait(99))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await anyio.wait_all_tasks_blocked()
            log.add(AuditDraft("example.org", 443), "allowed")
    assert got == [record.host for record in log.since(99)] == ["example.org"]


async def test_a_record_has_no_control_characters() -> None:
    draft = AuditDraft("\x1b[31mhost\n", 443)
    draft.path = "/\x9b\u202e"
    record = AuditLog().add(draft, "denied", "it asks for \x1b]0;title\x07")
    assert (record.host, record.path, record.reason) == ("?[31mhost?", "/??", "it asks for ?]0;title?")


async def test_a_reader_gets_the_next_record_and_the_end() -> None:
    log = AuditLog()
    got: list[list[str]] = []

    async def follow() -> None:
        got.append([record.host for record in await log.wait(0)])
        got.append([record.host for record in await log.wait(1)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await anyio.wait_all_tasks_blocked()
        log.add(AuditDraft("example.org", 443), "denied", "x" * 10_000)
        await anyio.wait_all_tasks_blocked()
        log.close()
    assert got == [["example.org"], []]
    assert len(log.since(0)[0].reason or "") == 500


async def test_the_second_address_is_tried_if_the_first_one_refuses() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)
        async with await connect_to((IPv4Address("127.0.0.9"), LOOPBACK), port, 5) as stream:
            await stream.send(b"hello")


async def test_an_address_that_refuses_is_named_with_the_reason() -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(SocketAttribute.local_port)
    with pytest.raises(Unreachable, match="connection refused"):
        async with await connect_to((LOOPBACK,), port, 5):
            pass
