"""TLS of the clients: the platform's certificates or those of `SSL_CERT_FILE`, and always a check of the host name."""

from __future__ import annotations

import select
import ssl
import threading
from typing import Any


def make_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.sslsocket_class = SharedTlsSocket
    return context


class SharedTlsSocket(ssl.SSLSocket):
    """A TLS socket that one thread may read while another writes, once it is shared.

    OpenSSL allows one call at a time on a connection, so no call may wait while it holds the lock: a shared socket
    never blocks, and its methods wait outside of the lock.
    """

    _turn: threading.Lock | None = None
    _timeout_s: float | None = None

    def share(self) -> None:
        timeout_s = self.gettimeout()
        self._turn = threading.Lock()
        self.settimeout(timeout_s)

    def settimeout(self, value: float | None) -> None:
        super().settimeout(value if self._turn is None else 0)
        self._timeout_s = value

    def recv_into(self, *arguments: Any) -> int:
        return self._when_ready(super().recv_into, *arguments)

    def send(self, *arguments: Any) -> int:
        return self._when_ready(super().send, *arguments)

    def _when_ready(self, act: Any, *arguments: Any) -> int:
        if self._turn is None:
            return int(act(*arguments))
        while True:
            try:
                with self._turn:
                    return int(act(*arguments))
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            poll = select.poll()
            poll.register(self, event)
            if not poll.poll(None if self._timeout_s is None else self._timeout_s * 1000):
                raise TimeoutError("timed out")
