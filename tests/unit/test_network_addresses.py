"""Addresses of egress: private ones need a rule with `private`, and what was checked is what is connected to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.network.addresses import MAX_ADDRESSES, SystemResolver, Unreachable, choose_addresses, is_private
from sandboxd.network.host_names import IPAddress, parse_target
from sandboxd.network.rules import Denied, EgressRule

pytestmark = pytest.mark.anyio

PUBLIC = EgressRule("host.example", 443, private=False)
PRIVATE = EgressRule("host.example", 443, private=True)
NAT64 = IPv6Network("64:ff9b::/96")
TARGET = parse_target("host.example:443")


class Names:
    """A resolver with one list of answers for all names; it counts the questions."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = [ip_address(address) for address in addresses]
        self.asked: list[tuple[str, int]] = []

    async def resolve(self, host: str, port: int) -> list[IPAddress]:
        self.asked.append((host, port))
        return self._addresses


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.100.100.200",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::8.8.8.8",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:0:7f00:1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "64:ff9b:1::8.8.8.8",
        "100::1",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:2::1",
        "2001:10::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "2002:808:808::1",
        "3ffe::1",
        "3fff::1",
        "4000::1",
        "5f00::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%lo",
        "fec0::1",
        "ff02::1",
        "ffff::1",
    ],
)
def test_an_address_that_is_not_global_unicast_is_private(address: str) -> None:
    assert is_private(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.1",
        "168.63.129.17",
        "169.253.255.255",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "198.17.255.255",
        "198.20.0.0",
        "223.255.255.255",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2606:4700::1111",
        "2a00:1450::1",
    ],
)
def test_a_global_unicast_address_is_not_private(address: str) -> None:
    assert not is_private(ip_address(address))


@given(st.ip_addresses(v=4) | st.ip_addresses(v=6))
def test_what_python_does_not_call_global_is_private(address: IPv4Address | IPv6Address) -> None:
    if not address.is_global and address not in NAT64:
        assert is_private(address)


async def test_private_addresses_of_a_name_are_dropped() -> None:
    names = Names("10.0.0.1", "8.8.8.8", "::1", "2606:4700::1111", "8.8.8.8")
    assert await choose_addresses(names, TARGET, PUBLIC) == (ip_address("8.8.8.8"), ip_address("2606:4700::1111"))
    assert names.asked == [("host.example", 443)]


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::ffff:10.0.0.1", "fd00:ec2::254"])
async def test_a_name_with_only_private_addresses_is_denied_with_what_to_ask_for(address: str) -> None:
    with pytest.raises(Denied) as denial:
        await choose_addresses(Names(address), TARGET, PUBLIC)
    assert denial.value.reason == (
        "host.example has only private addresses, and the rule host.example:443 does not allow that:"
        ' it needs "private": true'
    )


async def test_a_rule_with_private_allows_private_addresses() -> None:
    names = Names("10.0.0.1", "::ffff:10.0.0.2", "8.8.8.8")
    assert list(map(str, await choose_addresses(names, TARGET, PRIVATE))) == ["10.0.0.1", "10.0.0.2", "8.8.8.8"]


async def test_an_address_is_not_looked_up() -> None:
    names = Names()
    assert await choose_addresses(names, parse_target("8.8.8.8:53"), PUBLIC) == (ip_address("8.8.8.8"),)
    assert await choose_addresses(names, parse_target("[::1]:53"), PRIVATE) == (ip_address("::1"),)
    with pytest.raises(Denied, match="is a private address"):
        await choose_addresses(names, parse_target("[::ffff:127.0.0.1]:53"), PUBLIC)
    assert names.asked == []


async def test_the_number_of_addresses_is_bounded() -> None:
    names = Names("10.0.0.1", *(f"8.8.8.{number}" for number in range(100)))
    chosen = await choose_addresses(names, TARGET, PUBLIC)
    assert list(map(str, chosen)) == [f"8.8.8.{number}" for number in range(MAX_ADDRESSES)]


async def test_a_name_without_addresses_is_unreachable_and_not_denied() -> None:
    with pytest.raises(Unreachable, match=r"cannot find the host host\.example"):
        await choose_addresses(Names(), TARGET, PUBLIC)


async def test_the_resolver_of_this_host_finds_localhost() -> None:
    async with anyio.create_task_group() as tasks:
        found = await SystemResolver(tasks).resolve("localhost", 80)
    assert found
    assert all(address.is_loopback for address in found)


async def test_a_name_that_does_not_exist_is_unreachable() -> None:
    def refuse(*_: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async with anyio.create_task_group() as tasks:
        with pytest.raises(Unreachable) as failure:
            await SystemResolver(tasks, look_up=refuse).resolve("nothing.example", 80)
    assert failure.value.reason == "cannot find the host nothing.example: Name or service not known"


async def test_an_answer_that_is_not_an_address_ends_only_its_look_up() -> None:
    def answer(host: str, *_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, 80))]

    async with anyio.create_task_group() as tasks:
        resolver = SystemResolver(tasks, look_up=answer)
        with pytest.raises(Unreachable):
            await resolver.resolve("no address", 80)
        assert await resolver.resolve("8.8.8.8", 80) == [ip_address("8.8.8.8")]


async def test_look_ups_whose_callers_gave_up_still_count() -> None:
    """Otherwise a slow name server and impatient callers would make threads without end."""
    release, started = threading.Event(), threading.Semaphore(0)
    running: list[str] = []

    def block(host: str, *_: object) -> list[Any]:
        running.append(host)
        started.release()
        release.wait()
        return []

    async with anyio.create_task_group() as tasks:
        resolver = SystemResolver(tasks, max_look_ups=2, look_up=block)
        try:
            for host in ("a", "b"):
                await _give_up_once(started.acquire, resolver, host)
            async with anyio.create_task_group() as caller:
                caller.start_soon(resolver.resolve, "c", 80)
                await anyio.wait_all_tasks_blocked()
                caller.cancel_scope.cancel()
        finally:
            release.set()
        assert await resolver.resolve("d", 80) == []
    assert running == ["a", "b", "d"]


async def _give_up_once(has_started: Callable[[], object], resolver: SystemResolver, host: str) -> None:
    async with anyio.create_task_group() as caller:
        caller.start_soon(resolver.resolve, host, 80)
        await anyio.to_thread.run_sync(has_started)
        caller.cancel_scope.cancel()
