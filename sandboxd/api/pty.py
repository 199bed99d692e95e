"""Terminals over a WebSocket: start one or attach to a process, and relay bytes until either side ends.

Closing the socket detaches and leaves the process running. Output is read from the process only as fast as the client
takes it; what the runner discards in the meantime is reported, never waited for.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from memo.ids import SessionRef
from sandboxd.api.contracts import SandboxRunner
from sandboxd.api.processes import check_process_id
from sandboxd.api.requests import describe, read_query, session_ref
from sandboxd.api.routes import SESSION, Access, Endpoint, Services
from sandboxd.api.websockets import Handshake, SocketClosed, WebSocket
from sandboxd.errors import Busy, InvalidRequest, NotReady, SandboxdError, WorkspaceFull
from sandboxd.models.terminal import (
    LOGIN_SHELL,
    PtyQuery,
    TerminalAttached,
    TerminalDropped,
    TerminalEof,
    TerminalExit,
    TerminalFailure,
    TerminalResize,
    read_client_message,
)
from sandboxd.models.wire import AnswerModel
from sandboxd.runner.calls import Exec, Terminal
from sandboxd.websocket_codec import FAILED, INVALID_DATA, NORMAL

_PIECE_BYTES = 65_536
_SCREEN_BYTES = 16_384
"""How much earlier output is sent to a client that attaches without an offset."""
_WAIT_S = 20.0
_WAITING_MESSAGES = 4
"""Messages of the client that wait for the process. More are not read, which stops the client."""
_BUSY_S = 0.05
"""How long to wait when another client writes to the same process: the runner has no event for its end."""
_MAX_RETRIES = 3


async def open_pty(services: Services, request: Request) -> Response:
    ref = session_ref(request)
    query = read_query(request, PtyQuery)
    process_id = None if query.process is None else check_process_id(query.process)
    with await services.manager.call(ref) as runner:
        handshake = Handshake(request)
        if process_id is None:
            process_id, offset = await _start(services, ref, runner, query), 0
        else:
            offset = await _attach(runner, process_id, query)
        return await handshake.serve(partial(_relay, runner, process_id, offset))


async def _start(services: Services, ref: SessionRef, runner: SandboxRunner, query: PtyQuery) -> str:
    given = {"rows": query.rows, "columns": query.cols, "term": query.term}
    terminal = Terminal(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]
    process = await runner.start_process(Exec(query.command or LOGIN_SHELL), tty=terminal)
    command = query.command or LOGIN_SHELL
    services.manager.events.publish(
        "process", what="started", tenant=ref.tenant, session=ref.session, process=process.id, command=command
    )
    return process.id


async def _attach(runner: SandboxRunner, process_id: str, query: PtyQuery) -> int:
    """Return the offset of the first byte to send."""
    if query.rows is not None and query.cols is not None:
        await _resize(runner, process_id, query.rows, query.cols)
    if query.offset is not None:
        return (await runner.read_process(process_id, query.offset, 0)).offset
    end = (await runner.read_process(process_id, 0, 0)).process.output_bytes
    tail = await runner.read_process(process_id, max(0, end - _SCREEN_BYTES), _SCREEN_BYTES)
    # Not in the middle of a line, which could be in the middle of a character or a control sequence.
    return tail.offset + (tail.data.find(b"\n") + 1 if tail.offset else 0)


async def _relay(runner: SandboxRunner, process_id: str, offset: int, socket: WebSocket) -> None:
    await _send(socket, TerminalAttached(process=process_id, offset=offset))
    waiting: tuple[MemoryObjectSendStream[str | bytes], MemoryObjectReceiveStream[str | bytes]]
    waiting = anyio.create_memory_object_stream(_WAITING_MESSAGES)
    with waiting[0] as arriving, waiting[1] as arrived:
        async with anyio.create_task_group() as tasks:
            # Apart from what the process takes, so that pings are answered while it takes nothing.
            tasks.start_soon(_receive, socket, arriving, tasks.cancel_scope)
            tasks.start_soon(_write, runner, process_id, socket, arrived, tasks.cancel_scope)
            await _show(runner, process_id, offset, socket)
            tasks.cancel_scope.cancel()


async def _show(runner: SandboxRunner, process_id: str, offset: int, socket: WebSocket) -> None:
    """Send output as it is written, until the process ends or cannot be read."""
    failures = 0
    while True:
        try:
            output = await runner.read_process(process_id, offset, _PIECE_BYTES, _WAIT_S)
        except (NotReady, WorkspaceFull) as error:  # the call was interrupted, and reading again is safe
            failures += 1
            if failures > _MAX_RETRIES:
                return await _fail(socket, error)
            continue
        except SandboxdError as error:
            return await _fail(socket, error)
        failures = 0
        if output.offset > offset:
            await _send(socket, TerminalDropped(size_bytes=output.offset - offset, offset=output.offset))
        if output.data:
            await socket.send(output.data)
        offset = output.next_offset
        if not output.process.running and offset >= output.process.output_bytes:
            await _send(socket, TerminalExit(exit_code=output.process.exit_code))
            return await socket.close(NORMAL)


async def _receive(socket: WebSocket, arriving: MemoryObjectSendStream[str | bytes], scope: anyio.CancelScope) -> None:
    try:
        while True:
            await arriving.send(await socket.receive())
    except SocketClosed:
        scope.cancel()


async def _write(
    runner: SandboxRunner,
    process_id: str,
    socket: WebSocket,
    arrived: MemoryObjectReceiveStream[str | bytes],
    scope: anyio.CancelScope,
) -> None:
    """Carry out the client's messages in order. Input for a process that has ended or closed its stdin is dropped."""
    async for message in arrived:
        try:
            if isinstance(message, bytes):
                await _write_all(runner, process_id, message)
                continue
            wanted = read_client_message(message)
        except ValidationError as error:
            await _fail(socket, InvalidRequest(describe(error)), INVALID_DATA)
            scope.cancel()
            return
        match wanted:
            case TerminalResize():
                with suppress(SandboxdError):  # reported by the reader of its output
                    await _resize(runner, process_id, wanted.rows, wanted.cols)
            case TerminalEof():
                await _write_all(runner, process_id, b"", eof=True)


async def _write_all(runner: SandboxRunner, process_id: str, data: bytes, *, eof: bool = False) -> None:
    while data or eof:
        try:
            data = data[await runner.write_process(process_id, data, eof=eof) :]
        except Busy:
            await anyio.sleep(_BUSY_S)
            continue
        except SandboxdError:
            return  # if that ends the process too, the reader of its output reports why
        if not data:
            return


async def _resize(runner: SandboxRunner, process_id: str, rows: int, columns: int) -> None:
    try:
        await runner.resize_process(process_id, rows, columns)
    except InvalidRequest:
        return  # a process without a terminal


async def _send(socket: WebSocket, message: AnswerModel) -> None:
    await socket.send(message.model_dump_json())


async def _fail(socket: WebSocket, error: SandboxdError, code: int = FAILED) -> None:
    await _send(socket, TerminalFailure(code=error.code, detail=str(error), retryable=error.retryable))
    await socket.close(code, error.code)


ENDPOINTS = (
    Endpoint(
        "GET",
        f"{SESSION}/pty",
        open_pty,
        "pty",
        Access.SOCKET,
        "Open a WebSocket to a new terminal, or to a process that runs",
        query=PtyQuery,
        answers={101: None},
        messages={
            "client": (TerminalResize, TerminalEof),
            "server": (TerminalAttached, TerminalDropped, TerminalExit, TerminalFailure),
        },
        description=(
            "Binary messages, of at most 64 KiB from the client, are the terminal's bytes in both directions. Text "
            "messages are JSON: see x-websocket-messages. The daemon's first message is `attached`; after `exit` it "
            "closes with 1000, after `error` with 1011 or 1007, and with 1001 when it stops. Closing the socket "
            "detaches: the process keeps running. Before the upgrade, errors are problems as everywhere."
        ),
    ),
)
