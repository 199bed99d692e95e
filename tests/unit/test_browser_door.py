"""The door of `sandboxd inspect`: one browser gets in with the link, and nothing else does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import anyio
import pytest
from yarl import URL

import memo
from sandboxd.cli.browser_door import BrowserDoor, deep_link
from sandboxd.client.address import Address
from tests.unit.test_api_memo import wired
from tests.world.serving import ServedWorld, serving

pytestmark = pytest.mark.anyio

PAGE = "/__inspector/"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ServedWorld]:
    async with memo.open_store("memory://") as store, serving(tmp_path, store=store) as world:
        async for _ in wired(world):
            yield world


@pytest.fixture
async def door(world: ServedWorld) -> AsyncIterator[BrowserDoor]:
    async with BrowserDoor(Address(socket=world.socket), fragment=deep_link("acme", "s1")) as door:
        yield door


@pytest.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    """A client that keeps cookies, as a browser does, and follows no redirect by itself."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        yield http


async def status(http: aiohttp.ClientSession, url: str, method: str = "GET", **headers: str) -> int:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with http.request(method, URL(url, encoded=True), headers=sent, allow_redirects=False) as answer:
        await answer.read()
        return answer.status


async def test_the_link_lets_one_browser_in_and_leads_to_the_session(
    door: BrowserDoor, browser: aiohttp.ClientSession
) -> None:
    async with browser.get(door.link, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["location"]) == (303, f"{PAGE}#/tenants/acme/sessions/s1")
        cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/" in cookie
    async with browser.get(f"{door.url}{PAGE}") as page:
        assert page.status == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
    async with browser.get(f"{door.url}/__inspector/api/overview") as overview:
        assert (await overview.json())["sandboxes"][0]["session"] == "s1"


async def test_a_link_works_once(door: BrowserDoor, browser: aiohttp.ClientSession) -> None:
    assert await status(browser, door.link) == 303
    async with aiohttp.ClientSession() as other:
        assert await status(other, door.link) == 403
    assert await status(browser, door.link) == 403


async def test_a_link_expires(world: ServedWorld, browser: aiohttp.ClientSession) -> None:
    now = 100.0
    async with BrowserDoor(Address(socket=world.socket), token_s=60, clock=lambda: now) as door:
        now = 160.0
        assert await status(browser, door.link) == 403


async def test_nothing_answers_without_the_cookie(door: BrowserDoor, browser: aiohttp.ClientSession) -> None:
    for path in ("/", PAGE, "/__inspector/api/overview", "/v1/tenants/acme/sandboxes", "/healthz", "/metrics"):
        assert await status(browser, f"{door.url}{path}") == 401, path
    assert await status(browser, f"{door.url}/__inspector/enter?token=wrong") == 403
    assert await status(browser, f"{door.url}{PAGE}", cookie=f"sandboxd_inspector_{door.port}=wrong") == 401
    assert await status(browser, door.link) == 303, "a wrong token does not use the right one up"


async def test_another_host_name_is_refused_even_with_the_cookie(
    door: BrowserDoor, browser: aiohttp.ClientSession
) -> None:
    assert await status(browser, door.link) == 303
    for host in ("evil.example", f"evil.example:{door.port}", "127.0.0.1", f"127.0.0.1:{door.port + 1}", ""):
        assert await status(browser, f"{door.url}{PAGE}", host=host) in (400, 403), host
    (cookie,) = browser.cookie_jar
    named = f"{cookie.key}={cookie.value}"
    assert await status(browser, f"{door.url}{PAGE}", host=f"LOCALHOST:{door.port}", cookie=named) == 200


async def test_another_origin_is_refused_and_a_change_needs_this_one(
    door: BrowserDoor, browser: aiohttp.ClientSession
) -> None:
    assert await status(browser, door.link) == 303
    change = f"{door.url}/v1/tenants/acme/sessions/s1/sandbox/pause"
    for origin in (
        "http://evil.example",
        "null",
        f"http://127.0.0.1:{door.port + 1}",
        f"https://127.0.0.1:{door.port}",
    ):
        assert await status(browser, f"{door.url}{PAGE}", origin=origin) == 403, origin
        assert await status(browser, change, "POST", origin=origin) == 403, origin
    assert await status(browser, change, "POST") == 403
    assert await status(browser, change, "POST", origin=door.url) == 200


async def test_a_page_on_another_port_is_refused_by_what_the_browser_says_of_it(
    door: BrowserDoor, browser: aiohttp.ClientSession
) -> None:
    """Browsers send the cookie to every port of a host, and some requests of other pages have no Origin."""
    assert await status(browser, door.link) == 303
    overview = f"{door.url}/__inspector/api/overview"
    assert await status(browser, overview, sec_fetch_site="same-site") == 403
    assert await status(browser, overview, sec_fetch_site="cross-site") == 403
    assert await status(browser, overview, sec_fetch_site="same-origin") == 200


async def test_nothing_that_an_agent_wrote_can_run_on_the_pages_origin(
    door: BrowserDoor, browser: aiohttp.ClientSession
) -> None:
    assert await status(browser, door.link) == 303
    session = f"{door.url}/v1/tenants/acme/sessions/s1"
    script = b"<!doctype html><script>fetch('/v1/tenants/acme/sandboxes')</script>"
    for target in (f"{session}/artifacts/a1", f"{session}/memo/x.html", f"{session}/files?path=/workspace/x.html"):
        async with browser.put(target, data=script, headers={"origin": door.url}) as written:
            assert written.status < 300, target
        async with browser.get(target) as answer:
            assert await answer.read() == script
            assert answer.headers["content-security-policy"].startswith("sandbox;")
            assert answer.headers["x-content-type-options"] == "nosniff"
    for path in ("ports/8000", "ports/8000/", "ports/8000/x.html", "ports/8000/preview", "ports/8000/../9000/"):
        assert await status(browser, f"{session}/{path}") == 403, path
    assert await status(browser, f"{session}/%70orts/8000/x.html") == 400
    assert await status(browser, f"{session}/ports") == 200


async def test_another_page_cannot_use_the_link(door: BrowserDoor, browser: aiohttp.ClientSession) -> None:
    assert await status(browser, door.link, sec_fetch_site="cross-site") == 403
    assert await status(browser, door.link, origin="http://evil.example") == 403
    assert await status(browser, door.link, "POST") == 401
    assert await status(browser, door.link, sec_fetch_site="none") == 303


async def test_bodies_and_paths_reach_the_daemon_as_they_are(door: BrowserDoor, browser: aiohttp.ClientSession) -> None:
    assert await status(browser, door.link) == 303
    target = f"{door.url}/v1/tenants/acme/sessions/s1/memo/NOTES.md"
    content = "ä".encode() * 200_000
    async with browser.put(target, data=content, headers={"origin": door.url}) as written:
        assert (await written.json())["revision"] == 1
    async with browser.get(target) as read:
        assert (await read.read(), read.headers["etag"]) == (content, '"1"')
    for path in ("/__inspector/static/..%2fpage_files.py", "/v1/tenants/acme/sessions/%2e%2e/sandbox"):
        assert await status(browser, f"{door.url}{path}") == 400, path


async def test_events_are_passed_on_as_they_happen(
    world: ServedWorld, door: BrowserDoor, browser: aiohttp.ClientSession
) -> None:
    assert await status(browser, door.link) == 303
    with anyio.fail_after(60):
        async with browser.get(f"{door.url}/v1/events", headers={"accept": "text/event-stream"}) as stream:
            assert (await stream.content.readline()).startswith(b":")
            world.manager.events.publish("exec", tenant="acme", session="s1", exit_code=7)
            while not (line := await stream.content.readline()).startswith(b"data:"):
                pass
            assert json.loads(line[5:])["exit_code"] == 7


async def test_a_terminal_works_through_the_door_and_only_from_its_own_page(
    door: BrowserDoor, browser: aiohttp.ClientSession
) -> None:
    assert await status(browser, door.link) == 303
    target = f"{door.url}/v1/tenants/acme/sessions/s1/pty?command=cat"
    for headers in ({}, {"origin": "http://evil.example"}):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await browser.ws_connect(target, headers=headers)
        assert refused.value.status == 403
    with anyio.fail_after(60):
        async with browser.ws_connect(target, headers={"origin": door.url}) as terminal:
            await terminal.send_bytes(b"hello\n")
            shown = b""
            async for message in terminal:
                shown += message.data if message.type is aiohttp.WSMsgType.BINARY else b""
                if shown.count(b"hello") == 2:
                    break
    assert shown.count(b"hello") == 2


async def test_the_daemons_token_stays_behind_the_door(world: ServedWorld, browser: aiohttp.ClientSession) -> None:
    port = int(world.url.rpartition(":")[2])
    async with BrowserDoor(Address(host="127.0.0.1", port=port, token=world.token)) as door:
        assert await status(browser, door.link) == 303
        async with browser.get(f"{door.url}/__inspector/api/sessions") as answer:
            assert answer.status == 200
            assert world.token not in str(answer.headers) + await answer.text()
        assert await status(browser, f"{door.url}{PAGE}", authorization="Bearer wrong") == 200


async def test_a_daemon_that_is_gone_is_named(tmp_path: Path, browser: aiohttp.ClientSession) -> None:
    async with BrowserDoor(Address(socket=tmp_path / "none.sock")) as door:
        assert await status(browser, door.link) == 303
        async with browser.get(f"{door.url}{PAGE}") as answer:
            assert answer.status == 502
            assert "doctor" in await answer.text()


async def test_two_doors_do_not_lock_each_other_out(world: ServedWorld, browser: aiohttp.ClientSession) -> None:
    address = Address(socket=world.socket)
    async with BrowserDoor(address) as one, BrowserDoor(address) as other:
        assert await status(browser, one.link) == await status(browser, other.link) == 303
        assert await status(browser, f"{one.url}{PAGE}") == await status(browser, f"{other.url}{PAGE}") == 200


async def test_a_request_for_another_server_is_refused(door: BrowserDoor, browser: aiohttp.ClientSession) -> None:
    assert await status(browser, door.link) == 303
    (cookie,) = browser.cookie_jar
    for target in (f"{door.url}/v1/tenants/acme/sessions/s1/ports/8000/", "http://evil.example/", "*"):
        async with await anyio.connect_tcp("127.0.0.1", door.port) as stream:
            head = (
                f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\nCookie: {cookie.key}={cookie.value}\r\n\r\n"
            )
            await stream.send(head.encode())
            assert int((await stream.receive()).split()[1]) in (400, 403), target


async def test_a_page_that_was_closed_ends_its_streams(
    world: ServedWorld, door: BrowserDoor, browser: aiohttp.ClientSession
) -> None:
    assert await status(browser, door.link) == 303
    for _ in range(110):  # more than the connections that the door keeps
        async with browser.get(f"{door.url}/v1/events", headers={"accept": "text/event-stream"}) as stream:
            await stream.content.readline()
            stream.close()
    with anyio.fail_after(60):
        async with browser.get(f"{door.url}/__inspector/api/overview") as answer:
            assert answer.status == 200
