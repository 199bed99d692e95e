"""A runner of an earlier version of the daemon: calls that it does not support are refused, not half done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandboxd.errors import InvalidRequest
from sandboxd.runner.calls import Exec, ProcessLabel, Terminal
from sandboxd.runner.client import RunnerClient
from sandboxd.runner.inside import wire
from sandboxd.runner.protocol import Hello, read_hello

pytestmark = pytest.mark.anyio


class Link:
    """The daemon's end of a connection; records what is sent and never answers."""

    is_open = True
    is_full = False

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.sent: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)


def heads(link: Link) -> list[dict[str, object]]:
    frames = wire.FrameReader()
    frames.trust()
    return [wire.read_head(head) for _kind, _call, head, _data in frames.feed(b"".join(link.sent))]


async def no_pieces() -> AsyncIterator[bytes]:
    return
    yield


def test_a_greeting_without_a_level_means_the_lowest() -> None:
    greeting = {"pid": 1, "python": "3.11.2", "version": 1, "started_at": 0.0, "problem": ""}
    assert read_hello(greeting).level == 0
    assert read_hello({**greeting, "level": wire.LEVEL}).level == wire.LEVEL


async def test_an_earlier_runner_is_not_sent_calls_that_it_does_not_support() -> None:
    link, client = Link(), RunnerClient({})
    client.attach(link, Hello(1, "3.11.2", 1, 0.0))  # type: ignore[arg-type]
    link.sent.clear()
    for ask in (
        lambda: client.exec(Exec("true", merge_stderr=True)),
        lambda: client.start_process(Exec("true"), tty=Terminal(echo=False)),
        lambda: client.signal_process("p1", "INT"),
        lambda: client.kill_process("p1", "TERM", 1),
        lambda: client.list_directory("/workspace"),
        lambda: client.remove("/workspace/a"),
        lambda: client.make_directory("/workspace/a"),
        lambda: client.move("/workspace/a", "/workspace/b"),
        lambda: client.stat("/workspace/a", follow=False),
        lambda: client.read_archive("/workspace/a").__aenter__(),
        lambda: client.write_archive("/workspace/a", no_pieces()),
        lambda: client.start_process(Exec("true"), label=ProcessLabel("context", "a", 1)),
        lambda: client.configure({}, proxy=1),
        lambda: client.list_ports(),
    ):
        with pytest.raises(InvalidRequest, match="an earlier version of sandboxd started"):
            await ask()
    with pytest.raises(InvalidRequest, match="the limit is 1048576"):
        await client.exec(Exec(("true", "x" * 2_000_000)))
    assert link.sent == []


async def test_an_earlier_runner_is_not_told_of_the_proxy_when_it_connects() -> None:
    link, client = Link(), RunnerClient({}, proxy=8)
    client.attach(link, Hello(1, "3.11.2", 1, 0.0, level=3))  # type: ignore[arg-type]
    assert heads(link) == [{"op": "configure", "env": {}}]
    with pytest.raises(wire.WireError):
        client.receive(wire.OPEN, wire.OPENED | 1, b"", b"")
    link, current = Link(), Hello(1, "3.11.2", 1, 0.0, level=wire.LEVEL)
    client.attach(link, current)  # type: ignore[arg-type]
    assert [head["proxy"] for head in heads(link)] == [8]
