"""Kept-alive connections of both clients: a close by the server loses no call and repeats none. (I2)"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sandboxd.client import AnswerLost, AsyncClient, Client, DaemonUnreachable, ExecResult, request
from sandboxd.wire_limits import WireLimits
from tests.long_runs import scaled
from tests.unit.closing_server import Closing, ClosingServer, closing_server

CALLS = 20
RACES = scaled(200, 10_000)
SERVER_IDLE_S = 0.004

Do = Callable[..., Any]
"""Makes one call of a client: the method's name, then its arguments."""


@contextmanager
def ordinary(path: Path) -> Iterator[Do]:
    def do(name: str, *args: Any, **options: Any) -> Any:
        answer = getattr(client, name)(*args, **options)
        return list(answer) if name == "exec_stream" else answer

    with Client(path) as client:
        yield do


@contextmanager
def on_loop(path: Path, factory: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[Do]:
    """Use the async client on an event loop that runs only during a call, so it misses what happens in between."""

    async def act(name: str, *args: Any, **options: Any) -> Any:
        if name == "exec_stream":
            return [item async for item in client.exec_stream(*args, **options)]
        return await getattr(client, name)(*args, **options)

    with asyncio.Runner(loop_factory=factory) as runner:
        client = AsyncClient(path)
        try:
            yield lambda *args, **options: runner.run(act(*args, **options))
        finally:
            runner.run(client.close())


@pytest.fixture(params=["ordinary", "asyncio", "uvloop"])
def client_of(request: pytest.FixtureRequest) -> Callable[[ClosingServer], Any]:
    if request.param == "ordinary":
        return lambda server: ordinary(server.path)
    factory = asyncio.SelectorEventLoop if request.param == "asyncio" else uvloop.new_event_loop
    return lambda server: on_loop(server.path, factory)


Clients = Callable[[ClosingServer], Any]


def commands(server: ClosingServer) -> list[bytes]:
    """The commands that the server read, in order."""
    return [
        request.partition(b'"command":"')[2].partition(b'"')[0]
        for request in server.requests
        if request.startswith(b"POST")
    ]


def numbered(count: int) -> list[bytes]:
    return [b"echo %d" % number for number in range(count)]


@pytest.mark.parametrize("method", ["exec", "exec_stream"])
def test_a_call_that_the_server_did_not_read_before_closing_is_sent_again(
    client_of: Clients, tmp_path: Path, method: str
) -> None:
    with closing_server(tmp_path / "s", Closing.UNREAD) as server:
        with client_of(server) as do:
            for number in range(CALLS):
                do(method, "s", f"echo {number}")
        assert commands(server) == numbered(CALLS)
        assert server.connections == CALLS


def test_a_connection_that_was_closed_while_idle_is_not_used(client_of: Clients, tmp_path: Path) -> None:
    with closing_server(tmp_path / "s", Closing.IDLE, idle_s=0) as server:
        with client_of(server) as do:
            for number in range(CALLS):
                do("exec", "s", f"echo {number}")
                assert server.closed.acquire(timeout=30)
        assert commands(server) == numbered(CALLS)


def test_calls_that_race_with_the_close_of_an_idle_connection_all_run_once(client_of: Clients, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    lost = 0
    with closing_server(tmp_path / "s", Closing.IDLE, idle_s=SERVER_IDLE_S) as server:
        with client_of(server) as do:
            for number in range(RACES):
                try:
                    do("exec", "s", f"echo {number}")
                except DaemonUnreachable:
                    lost += 1
                time.sleep(SERVER_IDLE_S * chance.uniform(0.9, 1.1))
        assert lost == 0, f"lost {lost} of {RACES} calls (seed {seed})"
        assert commands(server) == numbered(RACES), f"seed {seed}"
        assert server.connections > 1, f"no connection was closed (seed {seed})"


def test_a_command_that_may_have_run_is_not_repeated_and_the_error_says_so(client_of: Clients, tmp_path: Path) -> None:
    with closing_server(tmp_path / "s", Closing.READ) as server:
        with client_of(server) as do:
            do("exec", "s", "echo 0")
            with pytest.raises(AnswerLost, match=r"may or may not have been carried out.*idempotency key"):
                do("exec", "s", "echo 1")
        assert commands(server) == numbered(2)


@pytest.mark.parametrize(
    ("method", "arguments", "options"),
    [
        ("exec", ("s", "echo"), {"idempotency_key": "once"}),
        ("resize_process", ("s", "p", 24, 80), {}),
        ("health", (), {}),
    ],
)
def test_a_call_that_is_safe_to_repeat_is_repeated(
    client_of: Clients, tmp_path: Path, method: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with closing_server(tmp_path / "s", Closing.READ) as server:
        with client_of(server) as do:
            do("health")
            do(method, *arguments, **options)
        first, again = server.requests[1:]
        assert first == again.replace(b"Connection: close\r\n", b"")
        assert (b"idempotency-key: once" in first) is bool(options)


@pytest.mark.parametrize(("idle_s", "connections"), [(30.0, 1), (0.0, 3)])
def test_a_connection_that_was_idle_too_long_is_dropped(
    client_of: Clients, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_s: float, connections: int
) -> None:
    monkeypatch.setattr("sandboxd.client.request.IDLE_S", idle_s)
    with closing_server(tmp_path / "s", Closing.NEVER) as server, client_of(server) as do:
        for _ in range(3):
            assert isinstance(do("exec", "s", "true"), ExecResult)
        assert server.connections == connections


def test_a_server_that_never_reads_is_unreachable_and_the_call_did_not_run(client_of: Clients, tmp_path: Path) -> None:
    with closing_server(tmp_path / "s", Closing.UNREAD_ALWAYS) as server, client_of(server) as do:
        with pytest.raises(DaemonUnreachable, match="closed the connection") as refused:
            do("exec", "s", "true")
        assert not isinstance(refused.value, AnswerLost)
        assert refused.value.retryable
    assert server.requests == []


def test_the_clients_drop_an_idle_connection_long_before_the_daemon_does() -> None:
    assert WireLimits().keep_alive_s >= 2 * request.IDLE_S
