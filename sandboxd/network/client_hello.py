"""HelloReader: the server name that a TLS client asks for, read by OpenSSL from the first bytes that it sends.

The bytes are kept unchanged for the server. The reader answers nothing, and needs no certificate or key.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

MAX_HELLO_BYTES = 32 * 1024


class HelloState(Enum):
    NEEDS_MORE = auto()
    COMPLETE = auto()
    NOT_TLS = auto()
    """Not the greeting of a client that speaks TLS 1.2 or newer."""


class _Greeting(ssl.SSLObject):
    """The server's end of a handshake that stops at the greeting."""

    seen = False
    server_name: str | None = None


def _stop(greeting: ssl.SSLObject, server_name: str | None, _: ssl.SSLContext) -> int:
    if isinstance(greeting, _Greeting):
        greeting.seen, greeting.server_name = True, server_name
    return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE  # ends the handshake; the alert is never sent


def _make_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslobject_class = _Greeting
    context.sni_callback = _stop
    return context


_CONTEXT = _make_context()


class HelloReader:
    """Takes the first bytes of a connection until they are a whole greeting, or cannot become one."""

    def __init__(self) -> None:
        self.state = HelloState.NEEDS_MORE
        self.server_name: str | None = None
        """In lower case and without a final dot, as in a target; None if the client sent none."""
        self._kept = bytearray()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._greeting: ssl.SSLObject | None = _CONTEXT.wrap_bio(self._incoming, self._outgoing, server_side=True)

    @property
    def data(self) -> bytes:
        """All bytes so far."""
        return bytes(self._kept)

    def feed(self, data: bytes) -> None:
        """Take more bytes. Allowed while the state is NEEDS_MORE."""
        if self._greeting is None:
            raise RuntimeError("cannot feed bytes to a reader that has decided")
        room = MAX_HELLO_BYTES - len(self._kept)
        self._kept += data
        self._incoming.write(data[:room])
        self.state = self._read(self._greeting)
        if self.state is HelloState.NEEDS_MORE and len(self._kept) >= MAX_HELLO_BYTES:
            self.state = HelloState.NOT_TLS
        if self.state is not HelloState.NEEDS_MORE:
            self._greeting = None  # frees OpenSSL's buffers

    def _read(self, greeting: ssl.SSLObject) -> HelloState:
        try:
            with _undecodable_names_unreported():
                greeting.do_handshake()
        except ssl.SSLWantReadError:
            return HelloState.NEEDS_MORE
        except ssl.SSLError:
            if isinstance(greeting, _Greeting) and greeting.seen:
                name = greeting.server_name
                self.server_name = None if name is None else name.lower().removesuffix(".")
                return HelloState.COMPLETE
        return HelloState.NOT_TLS


@contextmanager
def _undecodable_names_unreported() -> Iterator[None]:
    """Keep `ssl` from writing a server name that is not ASCII to stderr: a sandbox could fill the log with them.

    `ssl` ends such a handshake before the callback, and reports through this hook only.
    """
    hook = sys.unraisablehook

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if not (isinstance(unraisable.exc_value, UnicodeDecodeError) and isinstance(unraisable.object, bytes)):
            hook(unraisable)

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = hook
