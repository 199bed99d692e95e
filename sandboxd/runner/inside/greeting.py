"""The runner's side of the greeting: each side proves to the other that it has the secret.

Any process of the agent can connect to the same socket, so nothing is trusted before the proofs are checked. The secret
is read once at the start; the daemon removes the file after the first greeting.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

GREETING_TIMEOUT_S = 30.0


def read_secret(run_dir: str) -> bytes:
    with open(run_dir + "/secret", encoding="ascii") as file:
        return bytes.fromhex(file.read(256).strip())


class Greeting:
    """One attempt to greet the daemon: takes frames and returns frames until `done`."""

    def __init__(self, secret: bytes, problem: str = "") -> None:
        self._secret = secret
        self._problem = problem
        self._nonce = os.urandom(wire.NONCE_BYTES)
        self._challenge = b""
        self.done = False

    def take(self, kind: int, data: bytes) -> bytes:
        """Return what to send after this frame; raise WireError if the daemon fails to prove itself."""
        if kind == wire.CHALLENGE and not self._challenge and len(data) == wire.NONCE_BYTES:
            self._challenge = data
            proof = wire.prove(self._secret, "runner", wire.VERSION, data, self._nonce)
            return wire.pack(wire.PROOF, 0, self._describe(), self._nonce + proof)
        if kind == wire.ACCEPT and self._challenge:
            expected = wire.prove(self._secret, "daemon", wire.VERSION, self._challenge, self._nonce)
            if wire.is_proof(expected, data):
                self.done = True
                return b""
        raise wire.WireError("a daemon that does not have the secret")

    def _describe(self) -> dict[str, Any]:
        return {
            "version": wire.VERSION,
            "level": wire.LEVEL,
            "pid": os.getpid(),
            "python": ".".join(str(part) for part in sys.version_info[:3]),
            "started_at": STARTED_AT,
            "problem": self._problem,
        }


STARTED_AT = time.time()


def report_problem(run_dir: str, problem: str) -> None:
    """Report to the daemon why the runner cannot run. Best effort, because the exit code says it too."""
    try:
        greeting = Greeting(read_secret(run_dir), problem)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(GREETING_TIMEOUT_S)
            connection.connect(run_dir + "/socket")
            frames = wire.FrameReader()
            while not greeting.done:
                piece = connection.recv(wire.CHUNK_BYTES)
                if not piece:
                    return
                for kind, _call, _head, data in frames.feed(piece):
                    connection.sendall(greeting.take(kind, data))
    except (OSError, ValueError, wire.WireError) as error:
        sys.stderr.write(f"cannot reach the daemon: {error}\n")
