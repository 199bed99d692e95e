"""The channel to one sandbox's runner: many concurrent calls and streams on one connection, kept across reconnects.

A call whose connection breaks raises NotReady and says that its outcome is unknown. Whatever the runner sends, the
worst outcome is that its connection is closed. The meaning of a call is the client's part.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import anyio

from sandboxd.errors import Busy, InvalidRequest, NotReady, SandboxdError, SandboxError
from sandboxd.runner import protocol
from sandboxd.runner.accepted_streams import AcceptedStream, AcceptedStreams
from sandboxd.runner.inside import wire
from sandboxd.runner.link import RunnerLink
from sandboxd.runner.pending_call import PendingCall
from sandboxd.runner.protocol import ENTRANCE_LEVEL, Hello

RECONNECT_PATIENCE_S = 5.0
ANSWER_PATIENCE_S = 30.0
"""How long to wait for an answer after a call's own deadline. A live runner always answers sooner."""
MAX_CALLS = wire.MAX_CALLS - 1
"""One less than the runner accepts, because the last call may not have ended in the runner yet."""

Value = TypeVar("Value")

_OLD_RUNNER = (
    "cannot do this in this sandbox: an earlier version of sandboxd started its container; "
    "stop the container and create the sandbox again, its files are kept"
)


class CallChannel:
    """Owns the calls under way and the runner's connection, which the listener attaches and detaches."""

    def __init__(self, env: Mapping[str, str], proxy: int = 0) -> None:
        self._env = protocol.checked_env(env)
        self._proxy = proxy
        """How many streams at a time processes inside may open to the daemon."""
        self._streams = AcceptedStreams()
        self._link: RunnerLink | None = None
        self._hello: Hello | None = None
        self._failure: SandboxdError | None = None
        self._changed = anyio.Event()
        self._pending: dict[int, PendingCall] = {}
        self._last_id = 0

    @property
    def connected(self) -> bool:
        return self._link is not None

    def accept_streams(self, accept: Callable[[AcceptedStream], None] | None) -> None:
        """Pass every stream that is opened inside to `accept`, which must not block; without one, refuse them.

        `accept` takes over the stream and must close it, unless it raises.
        """
        self._streams.accept = accept

    async def wait_connected(self) -> Hello:
        """Wait for an authenticated runner. If none will ever connect, raise the error passed to `fail`."""
        while self._link is None or self._hello is None:
            self._raise_failure()
            await self._changed.wait()
        return self._hello

    async def wait_disconnected(self) -> None:
        while self._link is not None:
            await self._changed.wait()

    def fail(self, error: SandboxdError) -> None:
        """Fail every waiting call and every later one with this error, because the container is dead."""
        self._failure = error
        for pending in self._pending.values():
            pending.fail(error)
        self._streams.fail(error)
        self._announce()

    def interrupt(self, error: SandboxdError) -> None:
        """Fail every call under way with this error, and kill what it started. Later calls are accepted."""
        for pending in self._pending.values():
            pending.interrupt(error)
        self._streams.interrupt(error)

    def freeze(self, error: SandboxdError) -> None:
        """Note that the container is frozen: calls under way fail with this error at their own deadlines."""
        for pending in self._pending.values():
            pending.freeze(error)

    def thaw(self) -> None:
        """Note that the container runs again: calls under way get their usual overtime again."""
        for pending in self._pending.values():
            pending.thaw(ANSWER_PATIENCE_S)

    def attach(self, link: RunnerLink, hello: Hello) -> None:
        """Use this runner's connection. Called by the listener."""
        self._link = link
        self._hello = hello
        proxy = self._proxy if hello.level >= ENTRANCE_LEVEL else 0
        self._streams.allow(proxy)
        link.send(wire.pack(wire.CALL, 0, protocol.configure_head(self._env, proxy)))
        self._announce()

    def detach(self, link: RunnerLink, reason: str) -> None:
        """Drop this runner's connection and fail its calls. Called by the listener."""
        if link is not self._link:
            return
        self._link = None
        for pending in self._pending.values():
            if pending.link is link:
                pending.fail(NotReady(f"cannot tell the outcome of this call: the runner is gone, {reason}"))
        self._streams.detach(NotReady(f"cannot use this stream: the runner is gone, {reason}"))
        self._announce()

    def receive(self, kind: int, call: int, head: bytes, data: bytes) -> None:
        """Pass a frame to its call, or drop it if that call is over. Called by the listener."""
        pending = self._pending.get(call)
        if pending is not None:
            pending.receive(kind, head, data)
        elif call & wire.OPENED or kind == wire.OPEN:
            self._streams.receive(self._link, kind, call, head, data)

    async def _ask(
        self,
        head: dict[str, Any],
        read: Callable[[dict[str, Any], bytes], Value],
        body: bytes = b"",
        *,
        timeout_s: float = 0.0,
    ) -> Value:
        """Make a call that has one answer."""
        pending = await self._begin(head, body, 0, timeout_s)
        try:
            await pending.over()
            with self._checking(pending):
                return read(wire.read_head(self._end_of(pending)), pending.data)
        finally:
            self._close(pending)

    async def _begin(self, head: dict[str, Any], body: bytes, allowance: int, timeout_s: float) -> PendingCall:
        """Send a call. The caller must `_close` the pending call."""
        link = self._link or await self._reconnected()
        if link.is_full:
            await link.wait_writable()
        self._raise_failure()
        level = self._hello.level if self._hello is not None else 0
        if head.get("level", 0) > level:
            raise InvalidRequest(_OLD_RUNNER)
        if len(self._pending) >= MAX_CALLS:
            raise Busy(f"cannot accept this call: {MAX_CALLS} calls are already under way in this sandbox; try again")
        is_long = len(body) > wire.CHUNK_BYTES
        call_id = self._last_id = self._last_id % (wire.OPENED - 1) + 1
        frame = _pack_call(call_id, {**head, "more": True} if is_long else head, b"" if is_long else body, level)
        pending = self._pending[call_id] = PendingCall(
            call_id, link, allowance, timeout_s + ANSWER_PATIENCE_S, ANSWER_PATIENCE_S if timeout_s else 0.0
        )
        if link.is_open:
            link.send(frame)
            if is_long:
                pending.send_body(body)
            else:
                pending.credit -= len(body)
        else:
            pending.fail(NotReady("cannot make this call: the runner has just disconnected; try again"))
        return pending

    def _close(self, pending: PendingCall) -> None:
        del self._pending[pending.id]
        pending.close()

    @asynccontextmanager
    async def _begun(
        self, head: dict[str, Any], body: bytes | AsyncIterable[bytes], allowance: int, timeout_s: float
    ) -> AsyncGenerator[PendingCall]:
        """Make a call. A body that is a stream is sent concurrently with the caller's block."""
        if isinstance(body, bytes):
            pending = await self._begin(head, body, allowance, timeout_s)
            sending = None
        else:
            pending = await self._begin({**head, "more": True}, b"", allowance, timeout_s)
            # A plain task: a task group would wrap every error that passes through here, and GeneratorExit too.
            sending = asyncio.ensure_future(_send_stream(pending, body))
        try:
            yield pending
        finally:
            self._close(pending)
            if sending is not None:
                sending.cancel()
                with anyio.CancelScope(shield=True):
                    await asyncio.wait((sending,))

    def _end_of(self, pending: PendingCall) -> bytes:
        """Return the head of the last frame, or raise the call's error."""
        if pending.head is not None:
            return pending.head
        raise (pending.error or NotReady("cannot tell the outcome of this call")).with_traceback(None)

    @contextmanager
    def _checking(self, pending: PendingCall) -> Iterator[None]:
        try:
            yield
        except wire.WireError as error:
            raise self._distrust(pending, error) from None

    def _distrust(self, pending: PendingCall, error: wire.WireError) -> SandboxError:
        pending.link.close(f"it sent {error}")
        return SandboxError(f"cannot use the runner's answer: it sent {error}")

    async def _reconnected(self) -> RunnerLink:
        with anyio.move_on_after(RECONNECT_PATIENCE_S):
            await self.wait_connected()
        if self._link is None:
            raise NotReady(
                f"cannot reach the runner: it has not been connected for {RECONNECT_PATIENCE_S:g} s; try again"
            )
        return self._link

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _announce(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


async def _send_stream(pending: PendingCall, body: AsyncIterable[bytes]) -> None:
    """Send a body that is a stream. If the stream fails, cancel the call and fail it with the stream's error."""
    try:
        await pending.send_stream(body)
    except Exception as error:  # noqa: BLE001  # whatever it is, it goes to the caller
        pending.interrupt(error)


def _pack_call(call_id: int, head: dict[str, Any], data: bytes, level: int) -> bytes:
    frame = wire.pack(wire.CALL, call_id, head, data)
    size = len(frame) - len(data) - wire.HEADER_BYTES
    if size > wire.MAX_HEAD_BYTES and size > (most := wire.MAX_CALL_HEAD_BYTES if level else wire.MAX_HEAD_BYTES):
        raise InvalidRequest(
            f"cannot send this call: its command and environment take {size} bytes as JSON, and the limit is {most}; "
            "pass the data through stdin or a file"
        )
    return frame
