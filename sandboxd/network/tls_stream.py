"""TlsStream: TLS over a ByteStream, in either role, as a ByteStream again.

Unlike a socket's TLS it keeps the two directions apart: one side may end its own and still receive. It owns no
connection: the caller closes the stream below.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio

from sandboxd.errors import InvalidRequest
from sandboxd.network.byte_stream import ByteStream

_END_TIMEOUT_S: Final = 5.0
_MAX_BYTES: Final = 256 * 1024
_RECORD_BYTES: Final = 16 * 1024


async def wrap_server(stream: ByteStream, context: ssl.SSLContext) -> TlsStream:
    """Answer a TLS handshake. The caller bounds the time. Raise ssl.SSLError if the client's is not acceptable."""
    tls = TlsStream(stream, context, server_hostname=None)
    await tls.handshake()
    return tls


async def wrap_client(stream: ByteStream, hostname: str, context: ssl.SSLContext) -> TlsStream:
    """Start a TLS handshake as the client. Raise ssl.SSLCertVerificationError unless the host proves its name."""
    tls = TlsStream(stream, context, server_hostname=hostname)
    await tls.handshake()
    return tls


def verifying_context(extra_files: Iterable[Path] = ()) -> ssl.SSLContext:
    """Return the context of a client that trusts what this host trusts, and the CA certificates of extra files.

    It takes some 20 ms and is meant to be kept.
    """
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    for path in extra_files:
        try:
            context.load_verify_locations(path)
        except (OSError, ssl.SSLError) as error:
            raise InvalidRequest(f"cannot use the CA file {path}: {error.strerror or error}") from error
    return context


class TlsStream:
    """One TLS connection. One task may receive while another one sends."""

    def __init__(self, stream: ByteStream, context: ssl.SSLContext, *, server_hostname: str | None) -> None:
        self._stream = stream
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl_object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        self._sending = anyio.Lock(fast_acquire=True)  # receiving may have to send too, and records must stay in order
        self._failure: ssl.SSLError | None = None

    async def handshake(self) -> None:
        while True:
            try:
                self.ssl_object.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._fill()
            except ssl.SSLError:
                await self._send_alert()
                raise
            else:
                return await self._flush()

    async def receive(self) -> bytes:
        """Return the next bytes, or none once the other side has ended; raise if it was cut off instead."""
        while True:
            data, wants_more = self._decrypt()
            if self._outgoing.pending and not self._sending.locked():  # the other task flushes, and may have to wait
                await self._flush()
            if data or not wants_more:
                return data
            await self._fill()

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self.ssl_object.write(view[:_MAX_BYTES]) :]
            await self._flush()

    async def send_eof(self) -> None:
        """Tell the other side that nothing more follows; give up after some seconds if it does not read."""
        with suppress(ssl.SSLError):  # it wants the other side's end too, which `receive` reports; or it has failed
            self.ssl_object.unwrap()
        with anyio.move_on_after(_END_TIMEOUT_S):
            await self._flush()
            await self._stream.send_eof()

    def _decrypt(self) -> tuple[bytes, bool]:
        """Return all bytes that have arrived, up to a bound, and whether more must arrive first if there are none."""
        parts: list[bytes] = []
        size = 0
        while size < _MAX_BYTES and self._failure is None:
            try:
                part = self.ssl_object.read(_RECORD_BYTES)  # never more than one record
            except ssl.SSLWantReadError:
                return b"".join(parts), True
            except ssl.SSLZeroReturnError:
                break
            except ssl.SSLError as error:
                self._failure = error
                break
            if not part:
                break
            parts.append(part)
            size += len(part)
        if self._failure is not None and not parts:
            raise self._failure
        return b"".join(parts), False

    async def _fill(self) -> None:
        data = await self._stream.receive()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()  # without a farewell inside TLS, this is an error and not an end

    async def _flush(self) -> None:
        async with self._sending:
            while data := self._outgoing.read():
                await self._stream.send(data)

    async def _send_alert(self) -> None:
        """Tell the other side why the handshake failed, if it still listens."""
        # the failure of the handshake is the one to report, not one of this
        with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            with anyio.move_on_after(_END_TIMEOUT_S):
                await self._flush()
