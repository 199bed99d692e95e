"""Egress rules against a plain reading of them, and hosts against the readers of addresses."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, ip_address

from hypothesis import example, given
from hypothesis import strategies as st

from sandboxd.errors import InvalidRequest
from sandboxd.network.host_names import EgressTarget, parse_host, parse_target
from sandboxd.network.rules import EgressPolicy, EgressRule, covers

LABELS = st.sampled_from(["a", "b", "xn--c"])
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
ADDRESSES = st.sampled_from(["192.0.2.1", "192.0.2.2", "2001:db8::1"])
PORTS = st.sampled_from([80, 443])
WILDCARDS = st.lists(LABELS, min_size=2, max_size=4).map(lambda labels: "*." + ".".join(labels))
RULES = st.builds(EgressRule, NAMES | WILDCARDS | ADDRESSES, st.none() | PORTS, st.booleans())
TARGETS = st.builds(EgressTarget, NAMES | ADDRESSES, PORTS)

NUMBERS = st.one_of(
    st.integers(0, 2**33).map(str),
    st.integers(0, 2**33).map(hex),
    st.integers(0, 2**33).map(lambda number: f"0{number:o}"),
    st.sampled_from(["", "0x", "0X7F", "00", "256", "127", "a", "e1", "1e1", "-1", "+1", "1_0", "\uff10"]),
)
ADDRESS_LIKE = st.tuples(
    st.lists(NUMBERS, min_size=1, max_size=5).map(".".join), st.sampled_from(["", ".", "..", " "])
).map("".join)


def rules_near(host: str) -> st.SearchStrategy[EgressRule]:
    """Rules for a host and for everything below a name above it."""
    labels = host.removeprefix("*.").split(".") if ":" not in host else []
    above = ["*." + ".".join(labels[start:]) for start in range(1, len(labels) - 1)]
    return st.builds(EgressRule, st.sampled_from([host, *above]), st.none() | PORTS, st.booleans())


def allows(rule: EgressRule, target: EgressTarget) -> bool:
    if rule.port is not None and rule.port != target.port:
        return False
    if rule.host.startswith("*."):
        return target.address is None and target.host.endswith(rule.host[1:])
    return target.host == rule.host


@given(st.data(), TARGETS)
def test_a_target_is_allowed_if_and_only_if_one_of_the_rules_allows_it(
    data: st.DataObject, target: EgressTarget
) -> None:
    rules = data.draw(st.lists(rules_near(target.host) | RULES, max_size=6))
    matching = [rule for rule in rules if allows(rule, target)]
    found = EgressPolicy(rules).match(target)
    assert (found is not None) == bool(matching)
    if found is not None:
        assert found in matching
        assert found.private == any(rule.private for rule in matching)


@given(st.data(), RULES)
def test_a_policy_covers_a_rule_if_and_only_if_one_of_its_rules_does(data: st.DataObject, rule: EgressRule) -> None:
    bound = data.draw(st.lists(rules_near(rule.host) | RULES, max_size=6))
    found = EgressPolicy(bound).covering(rule)
    assert (found is not None) == any(covers(candidate, rule) for candidate in bound)
    assert found is None or covers(found, rule)


@given(st.data(), RULES, NAMES)
def test_what_a_covered_rule_allows_its_cover_allows(data: st.DataObject, bound: EgressRule, name: str) -> None:
    hosts = [bound.host]
    if bound.host.startswith("*."):
        hosts += [name + bound.host[1:], f"*.{name}{bound.host[1:]}"]
    rule = EgressRule(
        host=data.draw(st.sampled_from(hosts)),
        port=data.draw(st.none() | PORTS) if bound.port is None else bound.port,
        private=data.draw(st.booleans()) and bound.private,
    )
    target = EgressTarget(rule.host.replace("*", name), rule.port or data.draw(PORTS))
    assert covers(bound, rule)
    assert allows(rule, target)
    assert allows(bound, target)


@given(RULES, RULES)
def test_a_rule_that_is_not_covered_allows_something_more(bound: EgressRule, rule: EgressRule) -> None:
    if covers(bound, rule) or (rule.private and not bound.private):
        return
    name = rule.host.replace("*", "elsewhere")
    ports = [1, 80, 443] if rule.port is None else [rule.port]
    targets = [EgressTarget(name, port) for port in ports]
    assert any(allows(rule, target) and not allows(bound, target) for target in targets)


@given(ADDRESS_LIKE | st.text("0123456789abcdefx.-_", max_size=20) | st.text(max_size=20))
@example("127.1")
@example("0x7f.0.0.1")
@example("2130706433")
def test_no_host_is_an_address_in_another_spelling(text: str) -> None:
    try:
        host = parse_host(text)
    except InvalidRequest:
        return
    try:
        number = int.from_bytes(socket.inet_aton(host), "big")
    except OSError:
        number = None
    try:
        address = ip_address(host)
    except ValueError:
        address = None
    if number is not None:
        assert address == IPv4Address(number)
    assert EgressTarget(host, 1).address == address
    assert address is None or host == str(address)


@given(st.text(max_size=30) | NAMES | ADDRESS_LIKE)
def test_a_parsed_target_is_parsed_to_itself(text: str) -> None:
    try:
        target = parse_target(text, 443)
    except InvalidRequest:
        return
    assert parse_target(str(target)) == target
