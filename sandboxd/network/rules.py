"""EgressPolicy: which targets a sandbox may reach, as rules that are looked up by name and never scanned.

A rule for a name never allows an address, and a rule for an address allows only that one. Nothing is resolved here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from sandboxd.errors import InvalidRequest
from sandboxd.models.network import AllowedHost
from sandboxd.network.host_names import (
    EgressTarget,
    address_of,
    canonical_ipv6,
    join_host_port,
    parse_host,
    shown,
    split_host_port,
)

_WILDCARD = "*."
_MAX_DESCRIBED = 20


class Denied(Exception):
    """The policy refuses a connection. The reason stands in the record and in the answer to the sandbox."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class EgressRule:
    """A host that may be reached: a name, an address, or `*.` and a name for everything below that name."""

    host: str
    port: int | None
    """None is every port."""
    private: bool
    """Whether the name may have a private address."""

    @property
    def text(self) -> str:
        """The rule as the record and errors show it."""
        return join_host_port(self.host, self.port)


def parse_rule(item: str | AllowedHost) -> EgressRule:
    """Return the rule of an item of `allow` that is not a preset."""
    if isinstance(item, AllowedHost):
        # without a port in the text, an IPv6 address is clear without brackets too
        host = canonical_ipv6(item.host) if item.host.count(":") > 1 and "[" not in item.host else _pattern(item.host)
        return EgressRule(host, item.port, item.private)
    text, port = split_host_port(item)
    return EgressRule(_pattern(text), port, private=False)


def _pattern(text: str) -> str:
    if "*" not in text:
        return parse_host(text)
    if not text.startswith(_WILDCARD) or "*" in text[len(_WILDCARD) :]:
        raise InvalidRequest(
            f"cannot use the rule {shown(text)}: * may only stand for the first part, as in *.example.org"
        )
    host = parse_host(text[len(_WILDCARD) :])
    if address_of(host) is not None:
        raise InvalidRequest(f"cannot use the rule {shown(text)}: nothing is below an IP address; name each address")
    if "." not in host:
        raise InvalidRequest(
            f"cannot use the rule {shown(text)}: it would allow the names of many owners; *"
            " needs a name of at least two parts, as in *.example.org"
        )
    return _WILDCARD + host


def covers(bound: EgressRule, rule: EgressRule) -> bool:
    """Return whether one rule allows everything that another one allows."""
    same_host = bound.host in _patterns_above(rule.host)
    return same_host and bound.port in (rule.port, None) and (bound.private or not rule.private)


def _patterns_above(pattern: str) -> Iterator[str]:
    """Yield a host or pattern and each wildcard that contains it, the most specific first."""
    yield pattern
    if address_of(pattern) is not None:
        return
    _, dot, parent = pattern.removeprefix(_WILDCARD).partition(".")
    while dot:
        yield _WILDCARD + parent
        _, dot, parent = parent.partition(".")


class EgressPolicy:
    """Rules, and which of them allows a target."""

    def __init__(self, rules: Iterable[EgressRule]) -> None:
        self._by_place: dict[tuple[str, int | None], EgressRule] = {}
        for rule in rules:
            place = (rule.host, rule.port)
            if place not in self._by_place or rule.private:
                self._by_place[place] = rule

    @property
    def rules(self) -> tuple[EgressRule, ...]:
        """The rules in the order in which they were given, each place once."""
        return tuple(self._by_place.values())

    def match(self, target: EgressTarget) -> EgressRule | None:
        """Return the most specific rule that allows a target, one with `private` if there is one; None if none does."""
        return self._most_specific(target.host, (target.port, None))

    def covering(self, rule: EgressRule) -> EgressRule | None:
        """Return a rule that allows everything that another policy's rule allows, or None."""
        found = self._most_specific(rule.host, (rule.port, None))
        return found if found is not None and (found.private or not rule.private) else None

    def describe(self) -> str:
        """Return the rules as a short list for an error."""
        listed = [rule.text for rule in self.rules[:_MAX_DESCRIBED]]
        more = len(self._by_place) - len(listed)
        return (", ".join(listed) or "nothing") + (f" and {more} more" if more else "")

    def _most_specific(self, pattern: str, ports: tuple[int | None, ...]) -> EgressRule | None:
        first = None
        for host in _patterns_above(pattern):
            for port in ports:
                rule = self._by_place.get((host, port))
                if rule is not None and rule.private:
                    return rule
                first = first or rule
        return first
