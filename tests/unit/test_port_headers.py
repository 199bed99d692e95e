"""Heads of proxied requests and answers: what is dropped, what is added, and that nothing leaves the prefix."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from sandboxd.api.port_headers import PortPlace, inner_headers, outer_cookie, outer_headers, outer_reference
from sandboxd.api.request_path import check_path, inner_path
from sandboxd.errors import InvalidRequest

PREFIX = "/v1/tenants/t/sessions/s/ports/8000"
BELOW = PortPlace(8000, PREFIX, "127.0.0.1:9090", "http")
OWN = PortPlace(8000, "", "abc.localhost:9090", "http")


@pytest.mark.parametrize(
    ("given", "below", "own"),
    [
        ("/login", f"{PREFIX}/login", "/login"),
        ("/a/../b?x=1#y", f"{PREFIX}/b?x=1#y", "/b?x=1#y"),
        ("next", f"{PREFIX}/dir/next", "/dir/next"),
        ("?page=2", f"{PREFIX}/dir/page?page=2", "/dir/page?page=2"),
        ("http://localhost:8000/x", f"{PREFIX}/x", "/x"),
        ("http://127.0.0.1:8000", f"{PREFIX}/", "/"),
        ("//[::1]:8000//x", f"{PREFIX}//x", "/x"),
        ("http://localhost:8001/x", "http://localhost:8001/x", "http://localhost:8001/x"),
        ("https://example.com/x", "https://example.com/x", "https://example.com/x"),
        (f"{PREFIX}/x", f"{PREFIX}/x", f"{PREFIX}/x"),
        (f"http://127.0.0.1:9090{PREFIX}/x", f"{PREFIX}/x", f"http://127.0.0.1:9090{PREFIX}/x"),
        ("mailto:a@example.com", "mailto:a@example.com", "mailto:a@example.com"),
        # What would lead a client with the daemon's token to another path of the daemon.
        ("../../../../../exec", f"{PREFIX}/exec", "/exec"),
        (f"{PREFIX}/../../exec", f"{PREFIX}/v1/tenants/t/sessions/s/exec", "/v1/tenants/t/sessions/s/exec"),
        ("%2e%2E/%2e./exec", f"{PREFIX}/exec", "/exec"),
        ("..\\..\\exec", f"{PREFIX}/exec", "/exec"),
        ("/.\t./exec", f"{PREFIX}/exec", "/exec"),
        ("http:/v1/exec", f"{PREFIX}/v1/exec", "/v1/exec"),
        ("http://127.0.0.1:9090/v1/exec", f"{PREFIX}/v1/exec", "http://127.0.0.1:9090/v1/exec"),
        ("http://localhost:9090/v1/exec", f"{PREFIX}/v1/exec", "http://localhost:9090/v1/exec"),
        ("//[::1]:9090/v1/exec", f"{PREFIX}/v1/exec", "//[::1]:9090/v1/exec"),
        ("http://[/", f"{PREFIX}/", "/"),
    ],
)
def test_a_reference_stays_with_its_port(given: str, below: str, own: str) -> None:
    assert outer_reference(given, BELOW, "/dir/page") == below
    assert outer_reference(given, OWN, "/dir/page") == own


@given(st.text(alphabet="./\\%2eE?#:ax", max_size=30))
def test_no_reference_without_a_host_leaves_the_prefix(text: str) -> None:
    shown = outer_reference(text, BELOW, "/dir/page")
    if re.match("//|[a-z][a-z0-9+.-]*:", shown, re.IGNORECASE):
        return  # on another host, for every client
    path = URL(f"http://127.0.0.1:9090{PREFIX}/dir/page").join(URL(shown)).path
    assert path == PREFIX or path.startswith(f"{PREFIX}/")


def test_a_cookie_stays_on_its_host_and_below_its_prefix() -> None:
    given = "a=b; Domain=localhost; Path=/app; HttpOnly; SameSite=Lax"
    assert outer_cookie(given, BELOW, "/x/y") == f"a=b; HttpOnly; SameSite=Lax; Path={PREFIX}/app"
    assert outer_cookie(given, OWN, "/x/y") == "a=b; Path=/app; HttpOnly; SameSite=Lax"
    assert outer_cookie("a=b", BELOW, "/x/y") == f"a=b; Path={PREFIX}/x"
    assert outer_cookie("a=b; path=", BELOW, "/") == f"a=b; Path={PREFIX}/"
    assert outer_cookie(f"a=b; Path={PREFIX}/z", BELOW, "/") == f"a=b; Path={PREFIX}/z"


def test_the_server_inside_sees_neither_the_token_nor_the_daemons_host() -> None:
    given = [
        (b"host", b"127.0.0.1:9090"),
        (b"authorization", b"Bearer secret"),
        (b"x-sandboxd-authorization", b"Basic inner"),
        (b"connection", b"keep-alive, x-hop"),
        (b"x-hop", b"1"),
        (b"x-forwarded-for", b"10.0.0.1"),
        (b"accept", b"text/html"),
    ]
    sent = inner_headers(given, BELOW, is_socket=False)
    assert sent == [
        (b"host", b"localhost:8000"),
        (b"authorization", b"Basic inner"),
        (b"accept", b"text/html"),
        (b"x-forwarded-host", b"127.0.0.1:9090"),
        (b"x-forwarded-proto", b"http"),
        (b"x-forwarded-prefix", PREFIX.encode()),
        (b"connection", b"close"),
    ]
    on_own_host = dict(
        inner_headers([(b"authorization", b"a"), (b"origin", b"http://abc.localhost:9090")], OWN, is_socket=False)
    )
    assert (on_own_host[b"authorization"], on_own_host[b"origin"]) == (b"a", b"http://localhost:8000")


def test_an_answer_loses_the_headers_of_its_hop() -> None:
    given = [
        (b"connection", b"x-hop"),
        (b"x-hop", b"1"),
        (b"alt-svc", b"h3"),
        (b"refresh", b"3; URL='/x'"),
        (b"etag", b"e"),
    ]
    sent = outer_headers(given, BELOW, status=200, inner_path=b"/")
    assert sent == [(b"refresh", f"3; url={PREFIX}/x".encode()), (b"etag", b"e")]
    assert outer_headers([(b"content-length", b"5")], BELOW, status=304, inner_path=b"/") == []


@pytest.mark.parametrize("rest", ["a%2Fb", "%41", "//", "a%0Ab", "%ff", "a/.b/..c/...", "x%zz", "%25", "@scope%2fname"])
def test_a_path_below_a_port_is_passed_on_as_it_is(rest: str) -> None:
    raw = f"{PREFIX}/{rest}".encode()
    check_path(raw)
    assert inner_path(raw) == b"/" + rest.encode()


@pytest.mark.parametrize(
    "rest", ["..", ".", "a/../b", "%2e%2E/x", "a%2f..%2Fb", "..%5cx", "a\\..\\b", "..;/x", "x/%2e"]
)
def test_a_dot_segment_below_a_port_is_refused(rest: str) -> None:
    with pytest.raises(InvalidRequest):
        check_path(f"{PREFIX}/{rest}".encode())


@pytest.mark.parametrize(
    "path", ["/v1/tenants/t/sessions/s%2f/ports/1/x", "/v1/tenants/t/sessions/../ports/1//", "/v1//ports/1/x"]
)
def test_the_way_to_a_port_is_checked_like_any_path(path: str) -> None:
    with pytest.raises(InvalidRequest):
        check_path(path.encode())
