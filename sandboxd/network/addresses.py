"""The addresses of a target: looked up once, checked, and then the ones that are connected to.

An address that is not globally routable unicast is private: only a rule with `private` leads to one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.to_thread

from sandboxd.network.host_names import EgressTarget, IPAddress, parse_host
from sandboxd.network.rules import Denied, EgressRule

MAX_ADDRESSES = 8
_MAX_LOOK_UPS = 32

_PRIVATE_V4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT, and the metadata of some clouds
            "127.0.0.0/8",
            "168.63.129.16/32",  # public by number, but one cloud serves its virtual machines' metadata there
            "169.254.0.0/16",  # link-local, and the metadata of most clouds
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_GLOBAL_V6 = IPv6Network("2000::/3")
"""All that is assigned for unicast. Loopback, link-local, site-local, unique local and multicast are outside."""
_PRIVATE_V6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, with Teredo, which hides an IPv4 address
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, which hides an IPv4 address
            "3ffe::/16",  # given back
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
"""What DNS64 returns for every IPv4 host, so these are judged and not refused. 64:ff9b:1::/48 is for local use."""


class Unreachable(Exception):
    """A target that is allowed cannot be reached. The reason stands in the record and in the answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Resolver(Protocol):
    """Finds the addresses of a name."""

    async def resolve(self, host: str, port: int) -> list[IPAddress]:
        """Return the addresses in the order of preference. Raise Unreachable if there are none. The caller has the
        deadline."""


class SystemResolver:
    """The resolver of this host, which blocks, in threads of its own number: a slow name server delays only look-ups.

    A caller may give up; its thread goes on, and counts until it ends.
    """

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        max_look_ups: int = _MAX_LOOK_UPS,
        look_up: Callable[..., list[Any]] = socket.getaddrinfo,
    ) -> None:
        self._tasks = tasks
        self._turns = anyio.CapacityLimiter(max_look_ups)
        self._threads = anyio.CapacityLimiter(max_look_ups)
        self._look_up = look_up

    async def resolve(self, host: str, port: int) -> list[IPAddress]:
        answer = _Answer()
        await self._turns.acquire_on_behalf_of(answer)
        self._tasks.start_soon(self._ask, host, port, answer)
        await answer.done.wait()
        if answer.error is not None:
            raise Unreachable(f"cannot find the host {host}: {answer.error}")
        return answer.addresses

    async def _ask(self, host: str, port: int, answer: _Answer) -> None:
        try:
            # abandoned only when the task group ends, with the daemon
            found = await anyio.to_thread.run_sync(
                self._look_up, host, port, 0, socket.SOCK_STREAM, abandon_on_cancel=True, limiter=self._threads
            )
            answer.addresses = [ip_address(sockaddr[0]) for *_, sockaddr in found]
        except OSError as error:
            answer.error = error.strerror or "the resolver failed"
        except ValueError:  # it must not end the task group, and with it the daemon
            answer.error = "the resolver returned something that is not an address"
        finally:
            answer.done.set()
            self._turns.release_on_behalf_of(answer)


class _Answer:
    def __init__(self) -> None:
        self.done = anyio.Event()
        self.addresses: list[IPAddress] = []
        self.error: str | None = None


class PinnedHosts:
    """A resolver that knows the addresses of some names, and asks another one for the rest."""

    def __init__(self, hosts: Mapping[str, Sequence[IPAddress]], others: Resolver) -> None:
        self._hosts = {parse_host(host): list(addresses) for host, addresses in hosts.items()}
        self._others = others

    async def resolve(self, host: str, port: int) -> list[IPAddress]:
        known = self._hosts.get(host)
        return await self._others.resolve(host, port) if known is None else known


async def choose_addresses(resolver: Resolver, target: EgressTarget, rule: EgressRule) -> tuple[IPAddress, ...]:
    """Return the addresses of a target that a rule allows. Connect to these, and never to the name."""
    literal = target.address
    found = [literal] if literal is not None else await resolver.resolve(target.host, target.port)
    addresses = _without_mapping(found)
    if not addresses:
        raise Unreachable(f"cannot find the host {target.host}: it has no address")
    allowed = tuple(address for address in addresses if rule.private or not is_private(address))
    if not allowed:
        only = "is a private address" if literal is not None else "has only private addresses"
        raise Denied(f'{target.host} {only}, and the rule {rule.text} does not allow that: it needs "private": true')
    return allowed[:MAX_ADDRESSES]


def is_private(address: IPAddress) -> bool:
    """Return whether an address is not globally routable unicast, or may hide one that is not."""
    if isinstance(address, IPv4Address):
        return any(address in network for network in _PRIVATE_V4)
    if address.ipv4_mapped is not None:
        return is_private(address.ipv4_mapped)
    if address in _NAT64:
        return is_private(IPv4Address(int(address) & 0xFFFF_FFFF))
    return address not in _GLOBAL_V6 or any(address in network for network in _PRIVATE_V6)


def _without_mapping(addresses: Iterable[IPAddress]) -> list[IPAddress]:
    """Return each address once, and the IPv4 addresses that IPv6 ones map."""
    plain = ((a.ipv4_mapped or a) if isinstance(a, IPv6Address) else a for a in addresses)
    return list(dict.fromkeys(plain))
