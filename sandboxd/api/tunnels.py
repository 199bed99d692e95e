"""Tunnels: the raw bytes of one TCP connection to a port in a sandbox, over a WebSocket.

The connection inside exists before the WebSocket is accepted, so that a closed port is an ordinary error.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import anyio
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from sandboxd.api.ports import read_port
from sandboxd.api.requests import describe, session_ref
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.websockets import Handshake, SocketClosed, WebSocket
from sandboxd.errors import InvalidRequest, SandboxdError
from sandboxd.models.network import TunnelEof, TunnelFailure
from sandboxd.network.byte_stream import ByteStream
from sandboxd.websocket_codec import FAILED, INVALID_DATA, NORMAL


async def open_tunnel(services: Services, request: Request) -> Response:
    ref, port = session_ref(request), read_port(request)
    with await services.manager.call(ref) as runner:
        handshake = Handshake(request)
        async with runner.dial(port=port) as stream:
            return await handshake.serve(partial(_relay, stream))


async def _relay(stream: ByteStream, socket: WebSocket) -> None:
    """Copy bytes until both sides have ended, or one of them is gone."""
    async with anyio.create_task_group() as tasks:
        received, sent = anyio.Event(), anyio.Event()
        tasks.start_soon(_receive, stream, socket, received, tasks.cancel_scope)
        tasks.start_soon(_send, stream, socket, sent, tasks.cancel_scope)
        await received.wait()
        await sent.wait()
        await socket.close(NORMAL)
        tasks.cancel_scope.cancel()


async def _receive(stream: ByteStream, socket: WebSocket, ended: anyio.Event, tunnel: anyio.CancelScope) -> None:
    """Pass the client's bytes on, until it has ended or left."""
    try:
        with suppress(SandboxdError):  # the server takes no more; the reader of its bytes says if that is an error
            while isinstance(message := await socket.receive(), bytes):
                if message:
                    await stream.send(message)
            TunnelEof.model_validate_json(message)
            await stream.send_eof()
        ended.set()
        while True:  # only to answer pings, and to notice that the client leaves
            await socket.receive()
    except SocketClosed:
        tunnel.cancel()
    except ValidationError as error:
        await _fail(socket, InvalidRequest(describe(error)), INVALID_DATA)
        tunnel.cancel()


async def _send(stream: ByteStream, socket: WebSocket, ended: anyio.Event, tunnel: anyio.CancelScope) -> None:
    """Pass the server's bytes on, until it has ended."""
    try:
        while data := await stream.receive():
            await socket.send(data)
    except SandboxdError as error:
        await _fail(socket, error, FAILED)
        tunnel.cancel()
        return
    await socket.send(TunnelEof().model_dump_json())
    ended.set()


async def _fail(socket: WebSocket, error: SandboxdError, code: int) -> None:
    failure = TunnelFailure(code=error.code, detail=str(error), retryable=error.retryable)
    await socket.send(failure.model_dump_json())
    await socket.close(code, error.code)


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{SESSION}/tunnels/{{port}}",
        open_tunnel,
        "tunnel",
        Access.SOCKET,
        "Open a WebSocket to a TCP port in the sandbox",
        answers={101: None},
        messages={"client": (TunnelEof,), "server": (TunnelEof, TunnelFailure)},
        description=(
            "Binary messages, of at most 64 KiB from the client, are the connection's bytes in both directions; an "
            "empty one has no effect. Text messages are JSON: see x-websocket-messages. After `eof` of both sides the "
            "daemon closes with 1000, after `error` with 1011 or 1007, and with 1001 when it stops. Before the "
            "upgrade, errors are problems as everywhere: `port.closed` if nothing listens there."
        ),
    ),
)
