"""Hosts and rules of egress: one spelling for each host, and a rule allows exactly what it says."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from sandboxd.errors import InvalidRequest
from sandboxd.models.network import AllowedHost
from sandboxd.network.host_names import EgressTarget, parse_host, parse_target
from sandboxd.network.rules import EgressPolicy, EgressRule, covers, parse_rule

LONG_LABEL = "a" * 63
LONG_HOST = ".".join([LONG_LABEL] * 3 + ["b" * 61])


def policy(*items: str | AllowedHost) -> EgressPolicy:
    return EgressPolicy(map(parse_rule, items))


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("example.org:443", "example.org", 443),
        ("EXAMPLE.Org.:443", "example.org", 443),
        ("xn--bcher-kva.example:1", "xn--bcher-kva.example", 1),
        ("_service.a-b.example:65535", "_service.a-b.example", 65_535),
        ("localhost:8000", "localhost", 8000),
        ("1password.com:443", "1password.com", 443),
        ("0x7f.example:443", "0x7f.example", 443),
        (f"{LONG_HOST}:443", LONG_HOST, 443),
        (f"{LONG_HOST}.:443", LONG_HOST, 443),
        ("192.0.2.1:80", "192.0.2.1", 80),
        ("192.0.2.1.:80", "192.0.2.1", 80),
        ("[::1]:80", "::1", 80),
        ("[2001:DB8:0:0::1]:80", "2001:db8::1", 80),
        ("[::ffff:127.0.0.1]:80", "127.0.0.1", 80),
        ("[::ffff:7f00:1]:80", "127.0.0.1", 80),
    ],
)
def test_a_target_has_one_spelling(text: str, host: str, port: int) -> None:
    assert parse_target(text) == EgressTarget(host, port)


@pytest.mark.parametrize(
    "host",
    [
        "127.1",
        "0x7f.1",
        "0x7f000001",
        "0x",
        "0X7F.0.0.1",
        "2130706433",
        "0177.0.0.1",
        "127.0.0.01",
        "127.0.0.1.1",
        "127.0.0.256",
        "1.2.3",
        "example.1",
        "example.0x1f.",
    ],
)
def test_a_host_that_ends_in_a_number_is_a_strict_ipv4_address_or_refused(host: str) -> None:
    with pytest.raises(InvalidRequest, match="ends in a number"):
        parse_host(host)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":443",
        ".:443",
        "example.org",
        "example.org:",
        "example.org:0",
        "example.org:65536",
        "example.org:000443",
        "example.org:+443",
        "example.org:\u0664\u0664\u0663",
        "example.org:443:443",
        "example.org..:443",
        "a..example:443",
        ".example.org:443",
        "*.example.org:443",
        "user@example.org:443",
        "exam ple.org:443",
        "example.org\0:443",
        "example.org\n:443",
        "example.org/x:443",
        "bücher.example:443",
        "\uff11\uff12\uff17.0.0.1:443",
        "\u212a.example:443",
        "127\u30020\u30020\u30021:443",
        f"{LONG_LABEL}a.example:443",
        f"{LONG_HOST}b:443",
        "::1:443",
        "[::1:443",
        "[::1]443",
        "[::1]x:443",
        "[fe80::1%eth0]:443",
        "[fe80::1%25eth0]:443",
        "[127.0.0.1]:443",
        "[example.org]:443",
        "[]:443",
        "http://example.org:443",
    ],
)
def test_what_is_not_a_target_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^cannot use the (host|target) '") as refusal:
        parse_target(text)
    assert str(refusal.value).isascii() or "…" in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_an_endless_host_is_not_repeated_in_the_error() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_target("a" * 1_000_000 + ":443")
    assert len(str(refusal.value)) < 400


def test_a_target_without_a_port_gets_the_default_of_its_scheme() -> None:
    assert parse_target("example.org", 80) == EgressTarget("example.org", 80)
    assert parse_target("[::1]", 80) == EgressTarget("::1", 80)
    assert parse_target("example.org:8080", 80) == EgressTarget("example.org", 8080)


def test_a_target_knows_whether_it_is_an_address() -> None:
    assert parse_target("[::1]:80").address == ip_address("::1")
    assert parse_target("192.0.2.1:80").address == ip_address("192.0.2.1")
    assert parse_target("example.org:80").address is None
    assert str(parse_target("[::1]:80")) == "[::1]:80"
    assert str(parse_target("Example.org:80")) == "example.org:80"


@pytest.mark.parametrize(
    ("item", "rule", "text"),
    [
        ("Example.org.", EgressRule("example.org", None, False), "example.org"),
        ("example.org:443", EgressRule("example.org", 443, False), "example.org:443"),
        ("*.Example.org", EgressRule("*.example.org", None, False), "*.example.org"),
        ("*.example.org:443", EgressRule("*.example.org", 443, False), "*.example.org:443"),
        ("localhost", EgressRule("localhost", None, False), "localhost"),
        ("[::1]:80", EgressRule("::1", 80, False), "[::1]:80"),
        ("[::ffff:192.0.2.1]", EgressRule("192.0.2.1", None, False), "192.0.2.1"),
        ("192.0.2.1:80", EgressRule("192.0.2.1", 80, False), "192.0.2.1:80"),
        (
            AllowedHost(host="db.example", port=5432, private=True),
            EgressRule("db.example", 5432, True),
            "db.example:5432",
        ),
        (AllowedHost(host="*.corp.example"), EgressRule("*.corp.example", None, False), "*.corp.example"),
        (AllowedHost(host="::1", private=True), EgressRule("::1", None, True), "[::1]"),
        (AllowedHost(host="[::1]", port=80), EgressRule("::1", 80, False), "[::1]:80"),
        (AllowedHost(host="::ffff:10.0.0.1"), EgressRule("10.0.0.1", None, False), "10.0.0.1"),
    ],
)
def test_a_rule_has_one_spelling(item: str | AllowedHost, rule: EgressRule, text: str) -> None:
    assert parse_rule(item) == rule
    assert rule.text == text


@pytest.mark.parametrize(
    ("item", "why"),
    [
        ("*", "first part"),
        ("*:443", "first part"),
        ("a*.example.org", "first part"),
        ("*a.example.org", "first part"),
        ("a.*.example.org", "first part"),
        ("*.*.example.org", "first part"),
        ("example.*", "first part"),
        ("*.com", "at least two parts"),
        ("*.localhost", "at least two parts"),
        ("*.", "each part"),
        ("*.192.0.2.1", "IP address"),
        ("*.[::1]", "brackets"),
        (AllowedHost(host="*.[::1]"), "IP address"),
        ("*.127.1", "ends in a number"),
        ("::1", "brackets"),
        ("preset:packages", "port"),
        ("https://example.org", "port"),
        ("example.org/path", "each part"),
        (AllowedHost(host="example.org:443"), "each part"),
        (AllowedHost(host="[::1]:443"), "brackets"),
        (AllowedHost(host="*"), "first part"),
        (AllowedHost(host="fe80::1%eth0"), "zone ids"),
    ],
)
def test_what_is_not_a_rule_is_refused_with_its_reason(item: str | AllowedHost, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        parse_rule(item)


@pytest.mark.parametrize(
    ("rule", "target", "is_allowed"),
    [
        ("example.org", "example.org:1", True),
        ("example.org", "EXAMPLE.ORG.:1", True),
        ("example.org", "www.example.org:443", False),
        ("example.org", "badexample.org:443", False),
        ("example.org", "example.org.evil.example:443", False),
        ("example.org:443", "example.org:443", True),
        ("example.org:443", "example.org:80", False),
        ("*.example.org", "www.example.org:443", True),
        ("*.example.org", "a.b.c.example.org:443", True),
        ("*.example.org", "example.org:443", False),
        ("*.example.org", "badexample.org:443", False),
        ("*.example.org:443", "www.example.org:80", False),
        ("192.0.2.1", "192.0.2.1:80", True),
        ("192.0.2.1", "[::ffff:192.0.2.1]:80", True),
        ("192.0.2.1", "192.0.2.2:80", False),
        ("[2001:db8::1]:80", "[2001:db8:0::1]:80", True),
        ("[2001:db8::1]:80", "[2001:db8::2]:80", False),
    ],
)
def test_a_rule_allows_exactly_what_it_names(rule: str, target: str, is_allowed: bool) -> None:
    match = policy(rule).match(parse_target(target))
    assert match == (parse_rule(rule) if is_allowed else None)


def test_the_most_specific_rule_is_the_one_that_is_named() -> None:
    rules = policy("*.example.org", "*.a.example.org:443", "*.a.example.org", "b.a.example.org", "b.a.example.org:443")
    named = [
        rule.text
        for host in (
            "b.a.example.org:443",
            "b.a.example.org:80",
            "c.a.example.org:443",
            "c.a.example.org:80",
            "c.example.org:1",
        )
        if (rule := rules.match(parse_target(host)))
    ]
    assert named == [
        "b.a.example.org:443",
        "b.a.example.org",
        "*.a.example.org:443",
        "*.a.example.org",
        "*.example.org",
    ]


def test_a_broader_rule_with_private_is_preferred() -> None:
    rules = policy("db.corp.example:5432", AllowedHost(host="*.corp.example", private=True))
    rule = rules.match(parse_target("db.corp.example:5432"))
    assert rule == EgressRule("*.corp.example", None, private=True)


def test_private_survives_a_repetition_of_its_rule_without_it() -> None:
    with_private = AllowedHost(host="db.example", private=True)
    for items in (("db.example", with_private), (with_private, "db.example")):
        assert policy(*items).rules == (EgressRule("db.example", None, private=True),)


def test_a_policy_describes_itself_within_bounds() -> None:
    assert policy().describe() == "nothing"
    assert policy("a.example", "*.b.example:443").describe() == "a.example, *.b.example:443"
    many = policy(*(f"{number}.{LONG_HOST[:200]}.example" for number in range(256)))
    assert many.describe().endswith(" and 236 more")
    assert len(many.describe()) < 6000


@pytest.mark.parametrize(
    ("bound", "rule", "is_covered"),
    [
        ("example.org", "example.org", True),
        ("example.org", "example.org:443", True),
        ("example.org:443", "example.org", False),
        ("example.org:443", "example.org:80", False),
        ("*.example.org", "a.example.org:443", True),
        ("*.example.org", "*.example.org", True),
        ("*.example.org", "*.a.example.org", True),
        ("*.example.org", "example.org", False),
        ("*.a.example.org", "*.example.org", False),
        ("a.example.org", "*.example.org", False),
        ("192.0.2.1", "192.0.2.1:80", True),
        (AllowedHost(host="a.example", private=True), "a.example", True),
        ("a.example", AllowedHost(host="a.example", private=True), False),
    ],
)
def test_a_rule_covers_the_same_or_less(bound: str | AllowedHost, rule: str | AllowedHost, is_covered: bool) -> None:
    assert covers(parse_rule(bound), parse_rule(rule)) is is_covered
    assert (policy(bound).covering(parse_rule(rule)) is not None) is is_covered
