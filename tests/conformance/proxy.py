"""A proxy in front of an engine's socket that a test can cut: what a dying engine looks like from outside."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self


class CuttableProxy:
    """Owns a unix socket, the connections through it, and their threads. Once cut, it drops all of them."""

    def __init__(self, path: Path, upstream: str) -> None:
        self.url = f"unix://{path}"
        self._path = path
        self._upstream = upstream.removeprefix("unix://")
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def serve(self) -> None:
        """Accept connections until cut. Call it again to heal."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(64)
        self._start(self._accept, self._listener)

    def cut(self) -> None:
        """Close every connection and the socket itself, and wait until every thread has ended."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._path.unlink()
            listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for connection in self._open:
                with suppress(OSError):  # the other side may have closed first
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in tuple(self._threads):
            thread.join()
        if listener is not None:
            listener.close()
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._threads.clear()

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(self._upstream)
            with self._lock:
                self._open += [client, engine]
                if self._listener is None:  # cut at this moment
                    client.shutdown(socket.SHUT_RDWR)
            self._start(_pump, client, engine)
            self._start(_pump, engine, client)


class FreezableProxy:
    """Owns a process that runs such a proxy. Once frozen, it accepts connections and never answers."""

    def __init__(self, path: Path, upstream: str) -> None:
        self.url = f"unix://{path}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.proxy", str(path), upstream], stdout=subprocess.PIPE
        )

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"serving\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(65536):
            target.sendall(chunk)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    CuttableProxy(Path(sys.argv[1]), sys.argv[2]).serve()
    print("serving", flush=True)
    threading.Event().wait()
