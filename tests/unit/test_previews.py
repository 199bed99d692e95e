"""Previews: who may open one, what it reaches, when it ends, and that it is never a way to the API."""

from __future__ import annotations

import asyncio
import json
import re
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web
from yarl import URL

from memo.ids import SessionRef
from sandboxd.api.connection_table import ConnectionTable
from sandboxd.api.previews import MAX_VISITS
from sandboxd.client import AsyncClient, AsyncSandbox
from sandboxd.daemon import process
from sandboxd.errors import HostCorrupt, InvalidRequest, LimitReached
from sandboxd.models.network import Preview
from sandboxd.network.previews import (
    MAX_SESSION_PREVIEWS,
    PreviewAddress,
    Previews,
    find_address,
)
from sandboxd.network_settings import NetworkOptions
from sandboxd.settings import Settings
from sandboxd.wire_limits import WireLimits
from tests.world.inner_servers import serving_app, talking
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

REF = SessionRef.of("default", "s1")
WAIT_S = 30
ADDRESS = PreviewAddress("localhost", 8080)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as world:
        async with AsyncClient(world.socket) as client:
            await client.ensure_sandbox("s1", "u1")
        yield world


async def make(world: World, port: int, ttl_s: float = 600) -> Preview:
    async with await AsyncSandbox.connect("s1", socket=world.socket) as sandbox:
        return await sandbox.ports.preview(port, ttl_s=ttl_s)


@asynccontextmanager
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(WAIT_S)) as session:
        yield session


def visit(world: World, preview: Preview, rest: str = "/") -> tuple[URL, dict[str, str]]:
    """Return where to send a request, and its Host header: not every resolver knows names below localhost."""
    return URL(f"{world.url}{rest}", encoded=True), {"Host": URL(preview.url).authority}


async def ask(
    world: World, preview: Preview, rest: str = "/", method: str = "GET", **headers: str
) -> tuple[int, str, aiohttp.ClientResponse]:
    url, host = visit(world, preview, rest)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    async with (
        browser() as session,
        session.request(method, url, headers={**host, **given}, allow_redirects=False) as answer,
    ):
        return answer.status, await answer.text(), answer


async def show(request: web.Request) -> web.Response:
    shown = {"target": request.raw_path, "headers": {name.lower(): value for name, value in request.headers.items()}}
    answer = web.json_response(shown)
    answer.set_cookie("a", "b", domain="localhost")
    answer.headers["location"] = f"http://localhost:{request.url.port}/next"
    return answer


EVERYTHING = web.route("*", "/{rest:.*}", show)


async def test_a_preview_shows_its_port_on_a_host_of_its_own(world: World) -> None:
    async with serving_app(EVERYTHING) as port:
        preview = await make(world, port)
        label = re.fullmatch(rf"http://([a-z2-7]{{1,63}})\.localhost:{URL(world.url).port}/", preview.url)
        assert label is not None
        status, text, answer = await ask(world, preview, "/v1/tenants/../x%2e?a=b", authorization="Basic inner")
    seen = json.loads(text)
    assert (status, seen["target"]) == (200, "/v1/tenants/../x%2e?a=b")
    assert (seen["headers"]["host"], seen["headers"]["authorization"]) == (f"localhost:{port}", "Basic inner")
    assert seen["headers"]["x-forwarded-host"] == URL(preview.url).authority
    assert "x-forwarded-prefix" not in seen["headers"]
    assert (answer.headers["set-cookie"], answer.headers["location"]) == ("a=b; Path=/", "/next")
    assert answer.headers["referrer-policy"] == "same-origin"


@pytest.mark.parametrize(
    "path", ["/healthz", "/metrics", "/v1/events", "/v1/tenants/default/sessions/s1/ports/1/preview"]
)
async def test_a_preview_never_reaches_the_api(world: World, path: str) -> None:
    async with serving_app(EVERYTHING) as port:
        preview = await make(world, port)
        for method in ("GET", "POST"):
            _, text, _ = await ask(world, preview, path, method, authorization=f"Bearer {world.token}")
            assert json.loads(text)["target"] == path
            assert world.token not in text
        _, text, _ = await ask(world, preview, "/preview", "POST")
        assert json.loads(text)["target"] == "/preview"


def other_than(letter: str) -> str:
    return "b" if letter == "a" else "a"


async def test_a_wrong_name_is_not_found_even_with_the_token(world: World) -> None:
    async with serving_app(EVERYTHING) as port:
        preview = await make(world, port)
        name = URL(preview.url).host
        assert name is not None
        label = name.removesuffix(".localhost")
        wrong = [
            label[:-1] + other_than(label[-1]),
            other_than(label[0]) + label[1:],
            label[:-1],
            "x." + label,
            "a" * 56,
            "api",
            "\xe4",
        ]
        for one in wrong:
            other = Preview(url=preview.url, expires_at=preview.expires_at)
            url, _ = visit(world, other)
            headers = {"Host": f"{one}.localhost:{url.port}", "Authorization": f"Bearer {world.token}"}
            async with browser() as session, session.get(url, headers=headers) as answer:
                assert (answer.status, await answer.text()) == (404, "There is no such preview, or it has expired.\n")
                assert answer.headers["content-type"].startswith("text/plain")
        status, _, _ = await ask(world, Preview(url=preview.url.upper(), expires_at=preview.expires_at))
        assert status == 200  # names of hosts have no case


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {}, 200),
        ("POST", {}, 200),
        ("GET", {"sec_fetch_site": "cross-site"}, 200),
        ("POST", {"sec_fetch_site": "cross-site"}, 403),
        ("DELETE", {"sec_fetch_site": "same-site"}, 403),
        ("POST", {"sec_fetch_site": "same-origin"}, 200),
        ("GET", {"origin": "http://evil.example"}, 403),
        ("POST", {"origin": "null"}, 403),
        ("POST", {"origin": "null", "sec_fetch_site": "same-origin"}, 200),
        ("POST", {"origin": "own"}, 200),
        ("POST", {"origin": "api"}, 403),
    ],
)
async def test_only_its_own_pages_may_use_a_preview(
    world: World, method: str, headers: dict[str, str], status: int
) -> None:
    async with serving_app(EVERYTHING) as port:
        preview = await make(world, port)
        known = {"own": preview.url.removesuffix("/"), "api": world.url}
        given = {name: known.get(value, value) for name, value in headers.items()}
        got, text, _ = await ask(world, preview, "/", method, **given)
        assert got == status
        if headers.get("origin") == "own":
            assert json.loads(text)["headers"]["origin"] == f"http://localhost:{port}"


async def echo(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await socket.send_str(f"echo {message.data}")
    return socket


async def test_a_websocket_needs_the_previews_own_origin(world: World) -> None:
    async with serving_app(web.get("/ws", echo)) as port, browser() as session:
        preview = await make(world, port)
        url, host = visit(world, preview, "/ws")
        async with session.ws_connect(url, headers={**host, "Origin": preview.url.removesuffix("/")}) as socket:
            await socket.send_str("hi")
            assert await socket.receive_str(timeout=WAIT_S) == "echo hi"
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(url, headers={**host, "Origin": "http://evil.example"})
        assert refused.value.status == 403


async def test_open_streams_end_when_the_preview_expires(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"first\n")
        await asyncio.sleep(WAIT_S)
        return answer

    async with serving_app(web.get("/ws", echo), web.get("/", endless)) as port, browser() as session:
        preview = await make(world, port, ttl_s=2)
        url, host = visit(world, preview, "/ws")
        async with (
            session.ws_connect(url, headers=host) as socket,
            session.get(url.with_path("/"), headers=host) as got,
        ):
            assert await got.content.readline() == b"first\n"
            await socket.send_str("hi")
            assert await socket.receive_str(timeout=WAIT_S) == "echo hi"
            with pytest.raises(aiohttp.ClientError):
                await got.read()
            assert (await socket.receive(WAIT_S)).type is not aiohttp.WSMsgType.TEXT
        assert datetime.now(UTC) >= preview.expires_at
        assert (await ask(world, preview))[0] == 404
    assert "connection broken" not in capsys.readouterr().out


async def test_a_preview_ends_with_its_sandbox_and_not_with_its_container(world: World) -> None:
    async with serving_app(EVERYTHING) as port:
        preview = await make(world, port)
        await world.manager.hibernate(REF)
        assert (await ask(world, preview))[0] == 200  # as a call, it resumes the sandbox
        await world.manager.destroy(REF)
        assert (await ask(world, preview))[0] == 404
        async with AsyncClient(world.socket) as client:
            await client.ensure_sandbox("s1", "another")
        assert (await ask(world, preview))[0] == 404


async def test_a_page_about_an_error_names_neither_tenant_nor_session(world: World) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"garbage\r\n\r\n")

    async with talking(garbage) as port:
        preview = await make(world, port)
        assert (await ask(world, preview))[:2] == (502, "This preview cannot be shown now (port.bad_answer).\n")
    status, text, _ = await ask(world, preview)
    assert (status, text) == (
        502,
        f"Nothing listens on port {port} of this sandbox yet. Start the server and reload.\n",
    )


async def test_one_preview_takes_only_its_share(world: World) -> None:
    release = asyncio.Event()
    waiting = asyncio.Semaphore(0)

    async def wait(request: web.Request) -> web.Response:
        waiting.release()
        await release.wait()
        return web.Response()

    async with serving_app(web.get("/", wait)) as port, anyio.create_task_group() as tasks:
        preview = await make(world, port)
        for _ in range(MAX_VISITS):
            tasks.start_soon(ask, world, preview)
        with anyio.fail_after(WAIT_S):
            for _ in range(MAX_VISITS):
                await waiting.acquire()
        assert (await ask(world, preview))[0] == 503
        async with AsyncClient(url=world.url, token=world.token) as client:
            assert (await client.exec("s1", ["echo", "hi"])).stdout == "hi\n"
        release.set()


class Peer:
    is_idle = False
    idle_since = 0.0
    is_closed = False

    def body_rate(self) -> float:
        return 0.0

    def abort(self) -> None:
        self.is_closed = True

    def end_late_request(self) -> None:
        self.is_closed = True


def test_connections_of_previews_leave_room_for_those_with_a_token() -> None:
    table = ConnectionTable(WireLimits(max_connections=16), max_calls=64)
    guests = [Peer() for _ in range(16)]
    for guest in guests:
        table.open_tcp(guest)
        table.welcome(guest)
    assert [guest.is_closed for guest in guests] == [False] * 2 + [True] * 14
    clients = [Peer() for _ in range(12)]
    for client in clients:
        table.open_tcp(client)
        table.trust(client)
    assert not any(client.is_closed for client in clients)
    guests[0].is_idle = True
    last = Peer()
    table.open_tcp(last)
    table.welcome(last)
    assert (guests[0].is_closed, last.is_closed) == (True, False)
    table.trust(last)  # it has sent a token after all
    extra = Peer()
    table.open_tcp(extra)
    table.welcome(extra)
    assert not extra.is_closed


async def grant(previews: Previews, ttl_s: float = 600, session: str = "s1") -> str:
    return previews.label(await previews.grant(SessionRef.of("acme", session), "sandbox", 8000, ttl_s))


async def test_a_preview_survives_a_restart_and_says_nothing_about_its_session(tmp_path: Path) -> None:
    async with Previews(tmp_path, ADDRESS) as previews:
        label = await grant(previews)
        assert len(label) <= 63
        assert await grant(previews) != label
    async with Previews(tmp_path, ADDRESS) as previews:
        found = previews.find(label)
        assert found is not None
        assert (found.ref, found.port) == (SessionRef.of("acme", "s1"), 8000)
    for name in ("previews.key", "previews.db"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    (tmp_path / "previews.key").unlink()  # another key: every URL that was given out ends
    async with Previews(tmp_path, ADDRESS) as previews:
        assert previews.find(label) is None
    (tmp_path / "previews.key").write_bytes(b"short")
    with pytest.raises(HostCorrupt):
        await Previews(tmp_path, ADDRESS).__aenter__()


async def test_previews_expire_and_are_bounded(tmp_path: Path) -> None:
    now = 1_000_000.0
    async with Previews(tmp_path, ADDRESS, clock=lambda: now) as previews:
        labels = [await grant(previews, 10) for _ in range(MAX_SESSION_PREVIEWS)]
        with pytest.raises(LimitReached, match="this session has"):
            await grant(previews)
        await grant(previews, session="s2")
        assert all(previews.find(label) for label in labels)
        now += 10
        assert not any(previews.find(label) for label in labels)
        assert previews.find(await grant(previews)) is not None


async def test_a_changed_entry_opens_nothing(tmp_path: Path) -> None:
    async with Previews(tmp_path, ADDRESS) as previews:
        label = await grant(previews)
        await previews._database.run(lambda db: db.execute("UPDATE previews SET port = 9000"))
    async with Previews(tmp_path, ADDRESS) as previews:
        assert previews.find(label) is None


@pytest.mark.parametrize(
    ("tcp", "name", "url"),
    [
        ("127.0.0.1:8080", None, "http://x.localhost:8080/"),
        ("[::1]:8080", None, "http://x.localhost:8080/"),
        ("0.0.0.0:8080", None, None),
        ("0.0.0.0:80", "Preview.example.com", "http://x.preview.example.com/"),
        (None, "preview.example.com", None),
    ],
)
def test_the_address_of_previews_follows_the_listener(tcp: str | None, name: str | None, url: Any) -> None:
    address = find_address(tcp, name, is_tls=False)
    assert (None if address is None else address.url("x")) == url


async def test_a_daemon_whose_own_name_is_below_the_preview_host_does_not_start(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("t" * 32)
    options = NetworkOptions(preview_host="example.com")
    settings = Settings(data=tmp_path, tcp="api.example.com:8080", token_file=token_file, network=options)
    async with process._open_previews(settings) as previews:
        with pytest.raises(InvalidRequest, match=r"below it too; set network\.preview_host"):
            process._guard(web.Application, settings, previews)  # type: ignore[arg-type]  # it is never called


def test_only_names_below_the_preview_host_are_previews() -> None:
    assert ADDRESS.label_in("a.LOCALHOST:8080") == "a"
    assert ADDRESS.label_in("a.localhost.") == "a"
    assert ADDRESS.label_in("a.b.localhost") == "a.b"
    for other in ("localhost:8080", "127.0.0.1:8080", "alocalhost", "a.localhost.evil.example", ""):
        assert ADDRESS.label_in(other) is None
