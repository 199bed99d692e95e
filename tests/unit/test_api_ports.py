"""Requests to servers in a sandbox: HTTP both ways as it arrives, WebSockets, and servers that misbehave."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest
from aiohttp import web
from yarl import URL

from memo.ids import SessionRef
from sandboxd.api import port_proxy
from sandboxd.client import AsyncClient
from tests.world.inner_servers import answering, serving_app, talking
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

REF = SessionRef.of("default", "s1")
PORTS = "/v1/tenants/default/sessions/s1/ports"
WAIT_S = 30
BIG = 24 * 1024 * 1024


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with serving(tmp_path) as world:
        async with AsyncClient(world.socket) as client:
            await client.ensure_sandbox("s1", "u1")
        yield world


@asynccontextmanager
async def session_of(world: World) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(str(world.socket))
    timeout = aiohttp.ClientTimeout(WAIT_S)
    async with aiohttp.ClientSession("http://localhost", connector=connector, timeout=timeout) as session:
        yield session


def target(port: int, rest: str = "/") -> URL:
    return URL(f"http://localhost{PORTS}/{port}{rest}", encoded=True)


async def show(request: web.Request) -> web.Response:
    body = await request.read()
    shown = {"method": request.method, "target": request.raw_path, "headers": dict(request.headers), "size": len(body)}
    return web.json_response(shown, headers={"x-sandboxd-seen": "yes"})


EVERYTHING = web.route("*", "/{rest:.*}", show)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
async def test_every_verb_reaches_the_server(world: World, method: str) -> None:
    async with (
        serving_app(EVERYTHING) as port,
        session_of(world) as session,
        session.request(method, target(port, "/a?b=c"), data=b"12345", allow_redirects=False) as answer,
    ):
        shown = await answer.json()
    assert (answer.status, shown["method"], shown["target"], shown["size"]) == (200, method, "/a?b=c", 5)


async def test_a_path_and_its_query_arrive_byte_for_byte(world: World) -> None:
    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readuntil(b"\r\n\r\n")).splitlines()[0]
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + line)

    rest = "/a%2Fb//%41%0A%ff/x;y?q=%2e&r=+%20"
    async with talking(repeat) as port, session_of(world) as session:
        async with session.get(target(port, rest)) as answer:
            assert await answer.text() == f"GET {rest} HTTP/1.1"
        async with session.get(target(port, "")) as answer:
            assert await answer.text() == "GET / HTTP/1.1"
        async with session.get(target(port, "/x/%2e%2e/y")) as answer:
            assert (answer.status, (await answer.json())["code"]) == (400, "request.invalid")


async def test_neither_the_token_nor_the_daemons_host_is_seen_inside(world: World) -> None:
    headers = {
        "Authorization": f"Bearer {world.token}",
        "X-Sandboxd-Authorization": "Basic inner",
        "Idempotency-Key": "k1",
    }
    async with (
        serving_app(EVERYTHING) as port,
        aiohttp.ClientSession() as session,
        session.post(f"{world.url}{PORTS}/{port}/x", headers=headers, data=b"") as answer,
    ):
        shown = await answer.json()
    seen = {name.lower(): value for name, value in shown["headers"].items()}
    assert (seen["host"], seen["authorization"]) == (f"localhost:{port}", "Basic inner")
    assert (seen["x-forwarded-prefix"], seen["idempotency-key"]) == (f"{PORTS}/{port}", "k1")
    assert seen["x-forwarded-host"] == world.url.removeprefix("http://")
    assert world.token not in json.dumps(shown)
    async with (
        serving_app(EVERYTHING) as port,
        aiohttp.ClientSession() as session,
        session.get(f"{world.url}{PORTS}/{port}/x") as answer,
    ):
        assert answer.status == 401


async def test_a_head_request_a_204_and_a_304_have_no_body(world: World) -> None:
    async def answer_head(request: web.Request) -> web.Response:
        return web.Response(body=b"12345", headers={"etag": '"1"'})

    async def answer_status(request: web.Request) -> web.Response:
        return web.Response(status=int(request.match_info["status"]), headers={"etag": '"1"'})

    async with (
        serving_app(web.get("/head", answer_head), web.get("/status/{status}", answer_status)) as port,
        session_of(world) as session,
    ):
        async with session.head(target(port, "/head")) as answer:
            assert (answer.status, answer.headers["content-length"], await answer.read()) == (200, "5", b"")
        for status in (204, 304):
            async with session.get(target(port, f"/status/{status}")) as answer:
                assert (answer.status, answer.headers["etag"], await answer.read()) == (status, '"1"', b"")
        async with session.get(target(port, "/head")) as answer:
            assert await answer.read() == b"12345"


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nt: 1\r\n\r\n", b"abc"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcdef", b"abc"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", b"abc"),
    ],
)
async def test_every_framing_of_an_answer_is_understood(world: World, answer: bytes, body: bytes) -> None:
    async with talking(answering(answer)) as port, session_of(world) as session, session.get(target(port)) as got:
        assert (got.status, await got.read()) == (200, body)


async def test_a_large_upload_and_a_large_download_are_streamed(world: World) -> None:
    async def download(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for _ in range(BIG // 65_536):
            await answer.write(bytes(65_536))
        return answer

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(BIG // 65_536):
            yield bytes(65_536)

    async with serving_app(web.get("/", download), web.post("/", show)) as port, session_of(world) as session:
        async with session.get(target(port)) as answer:
            assert len(await answer.read()) == BIG
        async with session.post(target(port), data=pieces()) as answer:
            assert (await answer.json())["size"] == BIG


async def test_events_arrive_one_by_one_and_the_server_notices_that_the_client_left(world: World) -> None:
    go_on, has_ended = asyncio.Event(), asyncio.Event()

    async def events(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        try:
            await answer.write(b"data: 1\n\n")
            await go_on.wait()
            while True:
                await answer.write(b"data: 2\n\n")
                await asyncio.sleep(0.01)
        finally:
            has_ended.set()

    async with serving_app(web.get("/", events)) as port, session_of(world) as session:
        async with session.get(target(port)) as answer:
            assert answer.headers["content-type"] == "text/event-stream"
            assert await answer.content.readline() == b"data: 1\n"
            go_on.set()
            await answer.content.readline()
            assert await answer.content.readline() == b"data: 2\n"
            answer.close()
        with anyio.fail_after(WAIT_S):
            await has_ended.wait()


async def test_an_answer_before_the_end_of_the_upload_is_passed_on(world: World) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(65_536)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nno\n")
        while await reader.read(65_536):  # closing with unread bytes would reset the connection
            pass

    async with (
        talking(refuse) as port,
        session_of(world) as session,
        session.post(target(port), data=endless()) as answer,
    ):
        assert (answer.status, await answer.read()) == (413, b"no\n")


async def test_a_slow_reader_stops_the_server(world: World) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(65_536))
            await writer.drain()
            sent += 65_536

    async with talking(flood) as port, await anyio.connect_unix(world.socket) as stream:
        await stream.send(f"GET {PORTS}/{port}/ HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        before = -1
        with anyio.fail_after(WAIT_S):
            while before != sent:
                before = sent
                await anyio.sleep(0.5)
        assert 0 < sent < BIG
        async with AsyncClient(world.socket) as client:
            assert (await client.exec("s1", ["echo", "hi"])).stdout == "hi\n"


async def test_redirects_and_cookies_stay_below_the_prefix(world: World) -> None:
    async def redirect(request: web.Request) -> web.Response:
        headers = {"location": f"http://localhost:{request.url.port}/home", "refresh": "1; url=/home"}
        answer = web.Response(status=302, headers=headers)
        answer.set_cookie("a", "b", domain="localhost", path="/")
        return answer

    async with (
        serving_app(web.get("/", redirect)) as port,
        session_of(world) as session,
        session.get(target(port), allow_redirects=False) as answer,
    ):
        assert answer.headers["location"] == f"{PORTS}/{port}/home"
        assert answer.headers["refresh"] == f"1; url={PORTS}/{port}/home"
        assert answer.headers["set-cookie"] == f"a=b; Path={PORTS}/{port}/"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-server\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcde",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + bytes(1) + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\1b\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    ],
    ids=lambda answer: str(answer[:40]),
)
async def test_an_answer_that_is_not_http_is_an_error(world: World, answer: bytes) -> None:
    async with talking(answering(answer)) as port, session_of(world) as session, session.get(target(port)) as got:
        problem = await got.json()
    assert (got.status, problem["code"]) == (502, "port.bad_answer"), problem
    assert re.search(rf"^cannot pass on the answer of port {port}: .+; look", problem["detail"])


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n" + b"1;" + b"x" * 100_000,
    ],
    ids=["short", "garbage", "endless extension"],
)
async def test_an_answer_that_breaks_off_is_not_taken_for_complete(world: World, answer: bytes) -> None:
    async with talking(answering(answer)) as port, session_of(world) as session:
        async with session.get(target(port)) as got:
            assert got.status == 200
            with pytest.raises(aiohttp.ClientError):
                await got.read()
        async with session.get("/healthz") as got:
            assert got.status == 200


async def test_a_server_that_never_answers_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    monkeypatch.setattr(port_proxy, "ANSWER_S", 0.2)
    async with talking(silent) as port, session_of(world) as session:
        async with session.get(target(port)) as answer:
            assert (answer.status, (await answer.json())["code"]) == (502, "port.bad_answer")
        async with session.post(target(port), data=io.BytesIO(bytes(BIG))) as answer:
            assert (answer.status, (await answer.json())["code"]) == (502, "port.bad_answer")


async def test_a_port_without_a_server_is_named(world: World) -> None:
    async with talking(answering()) as port:
        pass
    async with session_of(world) as session:
        async with session.get(target(port)) as answer:
            problem = await answer.json()
        assert (answer.status, problem["code"], problem["retryable"]) == (502, "port.closed", True)
        for wrong in ("0", "65536", "http", "08"):
            async with session.get(f"{PORTS}/{wrong}/") as answer:
                assert (answer.status, (await answer.json())["code"]) == (400, "request.invalid")
        async with session.get("/v1/tenants/other/sessions/s1/ports/80/") as answer:
            assert (answer.status, (await answer.json())["code"]) == (404, "sandbox.not_found")


async def echo(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(protocols=("chat",))
    await socket.prepare(request)
    async for message in socket:
        if message.data == "bye":
            await socket.send_bytes(bytes(300_000))
            await socket.close(code=4000, message=b"done")
        else:
            await socket.send_str(f"{request.headers['host']} {message.data}")
    return socket


async def test_a_websocket_is_passed_through(world: World) -> None:
    async with (
        serving_app(web.get("/ws", echo)) as port,
        session_of(world) as session,
        session.ws_connect(target(port, "/ws"), protocols=("chat",), compress=15) as socket,
    ):
        assert socket.protocol == "chat"
        await socket.send_str("hello")
        assert await socket.receive_str() == f"localhost:{port} hello"
        await socket.send_str("x" * 200_000)
        assert len(await socket.receive_str()) > 200_000
        await socket.send_str("bye")
        assert len(await socket.receive_bytes()) == 300_000
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        assert socket.close_code == 4000


async def test_a_refused_handshake_is_answered_as_the_server_answers_it(world: World) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=403, text="not here")

    async with serving_app(web.get("/ws", refuse)) as port, session_of(world) as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(target(port, "/ws"))
    assert refused.value.status == 403


async def test_removing_the_sandbox_ends_its_streams_and_websockets(world: World) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"first\n")
        await asyncio.sleep(WAIT_S)
        return answer

    async with (
        serving_app(web.get("/ws", echo), web.get("/", endless)) as port,
        session_of(world) as session,
        session.ws_connect(target(port, "/ws")) as socket,
        session.get(target(port)) as answer,
    ):
        assert await answer.content.readline() == b"first\n"
        await world.manager.destroy(REF)
        with anyio.fail_after(WAIT_S), pytest.raises(aiohttp.ClientError):
            await answer.read()
        assert (await socket.receive(WAIT_S)).type is not aiohttp.WSMsgType.TEXT
