"""Writing to a process's stdin, request by request, until it has read everything. Does no I/O itself.

Every answer says how much was taken, so nothing is written twice. With an idempotency key each request has its own key,
made of the given one and the offset, so the whole write can be repeated after a lost answer.
"""

from __future__ import annotations

from sandboxd.client.calls import Call, write_process
from sandboxd.client.errors import WriteIncomplete
from sandboxd.errors import SandboxdError

REQUEST_BYTES = 1_048_576
_MAX_KEY_CHARS = 255


class StdinWrite:
    """One write: the data that is left, and the next request."""

    def __init__(self, data: str | bytes, *, eof: bool, key: str | None) -> None:
        self._data = data if isinstance(data, bytes) else data.encode()
        self._eof = eof
        self._key = key
        self._taken_bytes = 0
        self.is_done = False

    def next_call(self, tenant: str, session: str, process: str) -> Call[int]:
        piece = self._data[self._taken_bytes : self._taken_bytes + REQUEST_BYTES]
        is_last = self._taken_bytes + len(piece) == len(self._data)
        return write_process(tenant, session, process, piece, eof=self._eof and is_last, key=self._next_key())

    def advance(self, taken_bytes: int) -> None:
        self._taken_bytes += taken_bytes
        self.is_done = self._taken_bytes >= len(self._data)

    def fail(self, error: SandboxdError) -> None:
        """Raise WriteIncomplete if part of the data was taken before this error."""
        if self._taken_bytes:
            raise WriteIncomplete(self._taken_bytes, len(self._data), error) from error

    def _next_key(self) -> str | None:
        if self._key is None or not self._taken_bytes:
            return self._key
        key = f"{self._key}:{self._taken_bytes}"
        if len(key) <= _MAX_KEY_CHARS:
            return key
        import hashlib  # imported only for a key, to keep the command line fast

        return hashlib.sha256(key.encode()).hexdigest()
