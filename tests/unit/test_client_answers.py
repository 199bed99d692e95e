"""What both clients make of answers, arguments and addresses that are malformed or out of range."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandboxd.client import AsyncClient, Client
from sandboxd.client.address import find_address
from sandboxd.client.request import GRACE_S, MAX_WORK_S, timeout_for
from sandboxd.client.sse import EventReader
from sandboxd.errors import InternalError, InvalidRequest
from sandboxd.models.command import MAX_TIMEOUT_S
from tests.unit.test_client_transport import scripted

Call = Callable[[Any], Any]


def _answer(body: bytes, head: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body)


def _call(answer: bytes, call: Call) -> None:
    """Make a call with each client, which must both fail in the same way."""

    async def work(url: str) -> None:
        async with AsyncClient(url=url, token="t") as client:
            outcome = call(client)
            if isinstance(outcome, Awaitable):
                await outcome
            else:
                [item async for item in outcome]

    with scripted([answer]) as server, pytest.raises(InternalError, match="cannot read the daemon's answer") as failed:
        asyncio.run(work(server.address.url))
    assert "secret" not in str(failed.value)
    with scripted([answer]) as server, Client(url=server.address.url, token="t") as client:
        with pytest.raises(InternalError, match="cannot read the daemon's answer") as failed:
            list(call(client))
        assert "secret" not in str(failed.value)


@pytest.mark.parametrize(
    ("body", "call"),
    [
        (b"<html>secret</html>", lambda client: client.exec("s", "true")),
        (b'{"secret": 1}', lambda client: client.list_sandboxes()),
        (b"[" * 100_000, lambda client: client.health()),
        (b"secret \xff", lambda client: client.metrics()),
        (b"secret \xff", lambda client: client.read_memo("s", "NOTES.md")),
        (b"secret", lambda client: client.make_directory("s", "/workspace/a")),
        (b"event: exit\ndata: secret\n\n", lambda client: client.exec_stream("s", "true")),
        (b'event: stdout\ndata: {"secret": 1}\n\n', lambda client: client.exec_stream("s", "true")),
        (b"data: \xff\n\n", lambda client: client.exec_stream("s", "true")),
        (b"data: secret\n\n", lambda client: client.events()),
    ],
)
def test_a_malformed_answer_is_an_error_of_the_daemon_that_does_not_show_the_body(body: bytes, call: Call) -> None:
    _call(_answer(body), call)


def test_an_error_of_a_stream_is_not_read_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("_async", "_sync"):
        monkeypatch.setattr(f"sandboxd.client.{module}.calls.MAX_PROBLEM_BYTES", 10_000)
    problem = json.dumps({"code": "file.not_found", "detail": "x" * 1_000_000}).encode()
    _call(_answer(problem, b"404 Not Found"), lambda client: client.exec_stream("s", "true"))


@pytest.mark.parametrize("timeout", [-1_000_000, 10**400, 1e300, float("inf"), float("nan"), True, "soon", None])
def test_a_timeout_that_a_model_made_up_reaches_the_daemon(timeout: Any) -> None:
    refused = _answer(json.dumps({"ok": False, "content": "cannot use this timeout"}).encode())

    async def work(url: str) -> bool:
        async with AsyncClient(url=url, token="t") as client:
            return (await client.tool("s", "bash", {"timeout": timeout})).ok

    with scripted([refused], [refused]) as server:
        assert not asyncio.run(work(server.address.url))
        with Client(url=server.address.url, token="t") as client:
            assert not client.tool("s", "bash", {"timeout": timeout}).ok
    assert len(server.requests) == 2


def test_the_client_waits_for_every_timeout_that_a_daemon_accepts() -> None:
    assert MAX_WORK_S == MAX_TIMEOUT_S
    assert timeout_for(MAX_TIMEOUT_S) == MAX_TIMEOUT_S + GRACE_S
    assert [timeout_for(work_s) for work_s in (-1, float("inf"), float("nan"))] == [GRACE_S] * 3


def test_text_that_utf_8_cannot_encode_is_refused() -> None:
    with Client(url="http://127.0.0.1:1", token="t") as client:
        for call in (
            lambda: client.exec("s", "cat", stdin="\udc80"),
            lambda: client.write_file("s", "/workspace/a", "\udc80"),
            lambda: client.write_process("s", "p", "\udc80"),
            lambda: client.write_memo("s", "NOTES.md", "\udc80"),
        ):
            with pytest.raises(InvalidRequest, match="half of a surrogate pair"):
                call()


@pytest.mark.parametrize("host", ["a b", "a" * 70, "a..b"])
def test_a_url_with_an_impossible_host_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot use this URL"):
        find_address(url=f"http://{host}:80")


def test_events_are_found_wherever_chunks_split_them() -> None:
    stream = b"event: a\ndata: 1\n\ndata: 2\n\n\n\ndata: 3\ndata: 4\n\n"
    for size in range(1, len(stream)):
        reader = EventReader()
        found = [event for start in range(0, len(stream), size) for event in reader.feed(stream[start : start + size])]
        assert found == [("a", "1"), ("message", "2"), ("message", "3\n4")]
