"""The frames that daemon and runner exchange, and the proofs of their greeting. Pure: bytes in, bytes out.

A frame is a header, a head (JSON, may be empty) and data (raw bytes, may be empty). Every size is bounded, so a reader
can decide after 13 bytes whether to continue. It never touches a socket.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct

TYPE_CHECKING = False  # `typing` costs 8 ms at the start of every sandbox
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

VERSION = 1
LEVEL = 4
"""What a runner supports beyond its version, as reported in its greeting. 1: merged output, signals, terminal options,
long command lines. 2: list, remove, mkdir and move. 3: streams, archives, watches of directories, labels of processes.
4: streams that the runner opens, listening ports. A container outlives the daemon that started it, so its runner may
have a lower level."""

HEADER = struct.Struct("!BIII")  # kind, call, size of the head, size of the data
HEADER_BYTES = HEADER.size
MAX_HEAD_BYTES = 1_048_576
MAX_CALL_HEAD_BYTES = 8_388_608
"""The bound of a call's head: a command line of 2 MiB, the kernel's own limit, as JSON."""
MAX_DATA_BYTES = 262_144
MAX_GREETING_BYTES = 4_096
"""The bound of head and data until the other side has authenticated itself."""
MAX_CALLS = 256
OPENED = 0x8000_0000
"""The bit of an id that the runner chose, for a stream that it opened. The daemon's own ids are below."""

WINDOW_BYTES = 262_144
"""How much of one body may be in flight, so that a slow reader blocks only its own call."""
CHUNK_BYTES = 65_536

# the greeting
CHALLENGE = 1
PROOF = 2
ACCEPT = 3
# daemon to runner
CALL = 10
CANCEL = 11
# both ways: a piece of a body or a stream, its end, and credit to send more
DATA = 12
END = 13
CREDIT = 14
# runner to daemon
STDOUT = 20
STDERR = 21
RESULT = 22
ERROR = 23
EXITED = 24
OPEN = 25
"""Opens a stream under the runner's id. From then on it is like a stream that the daemon has dialled, except that the
daemon always sends CANCEL in the end, which frees its place, even after the runner's RESULT."""

GREETING_KINDS = frozenset((CHALLENGE, PROOF, ACCEPT))
KINDS = GREETING_KINDS | frozenset((CALL, CANCEL, DATA, END, CREDIT, STDOUT, STDERR, RESULT, ERROR, EXITED, OPEN))

NONCE_BYTES = 32

# a command's result: flags, exit code, milliseconds, bytes of stdout in the data (the rest is stderr). A struct,
# because this is the hot path: it takes 3 microseconds to write and read, JSON takes 23
EXITED_STRUCT = struct.Struct("!BHdI")
NO_CODE, TIMED_OUT, TRUNCATED, MEMORY_HIT, PIDS_HIT, WORKSPACE_HIT, TMP_HIT = 1, 2, 4, 8, 16, 32, 64

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
_pack = HEADER.pack
_credit = struct.Struct("!I")

# one entry of a listing: bytes of its name, mode, size, time of modification; then the name
ENTRY = struct.Struct("!HIQd")
MAX_PAGE_ENTRIES = 10_000

# one event of a watch: what happened, to which type of file, bytes of its path below the directory; then the path
WATCHED = struct.Struct("!BBH")
READY, CREATED, CHANGED, REMOVED, OVERFLOW = range(5)
TYPES = (0, 0o100000, 0o040000, 0o120000)
"""The types of files by their number: unknown, file, directory, link. The next number is any other type."""
MAX_WATCHED_PATH_BYTES = 4_351
"""The path of the deepest directory that is watched, a slash and a name."""


class WireError(Exception):
    """The other side sent something that is not a frame of this protocol."""


def pack(kind: int, call: int = 0, head: Mapping[str, Any] | None = None, data: bytes = b"") -> bytes:
    """Return one frame."""
    if head is None:
        return _pack(kind, call, 0, len(data)) + data
    text = _encode(head).encode("ascii")
    return _pack(kind, call, len(text), len(data)) + text + data


def pack_credit(call: int, size_bytes: int) -> bytes:
    return _pack(CREDIT, call, 0, 4) + _credit.pack(size_bytes)


def pack_exited(call: int, flags: int, code: int, duration_ms: float, stdout: bytes, stderr: bytes) -> bytes:
    head = EXITED_STRUCT.pack(flags, code, duration_ms, len(stdout))
    return _pack(EXITED, call, len(head), len(stdout) + len(stderr)) + head + stdout + stderr


def read_exited(head: bytes) -> tuple[int, int, float, int]:
    """Return the flags, exit code, milliseconds and bytes of stdout."""
    if len(head) != EXITED_STRUCT.size:
        raise WireError(f"an exit frame of {len(head)} bytes")
    flags, code, duration_ms, stdout_size = EXITED_STRUCT.unpack(head)
    if flags > 127 or code > 255 or not 0 <= duration_ms < 1e12:
        raise WireError("an invalid exit")
    return flags, code, duration_ms, stdout_size


def read_credit(data: bytes) -> int:
    if len(data) != _credit.size:
        raise WireError(f"a credit frame of {len(data)} bytes")
    return int(_credit.unpack(data)[0])


def read_head(text: bytes) -> dict[str, Any]:
    """Return the head of a frame; anything but a JSON object is a WireError."""
    if not text:
        return {}
    try:
        head = _decode(text.decode("utf-8"))
    except (ValueError, RecursionError):
        raise WireError("a head that is not JSON") from None
    if type(head) is not dict:
        raise WireError("a head that is not an object")
    return head


class FrameReader:
    """Cuts a stream of bytes into frames. Holds at most one incomplete frame."""

    __slots__ = ("_buffer", "_greeting", "_max_head_bytes", "_needed")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = HEADER_BYTES
        self._greeting = True
        self._max_head_bytes = MAX_HEAD_BYTES

    def trust(self, max_head_bytes: int = MAX_HEAD_BYTES) -> None:
        """Allow full sizes and all kinds from the next frame on, because the other side has authenticated itself."""
        self._greeting = False
        self._max_head_bytes = max_head_bytes

    def feed(self, piece: bytes) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Yield (kind, call, head, data) of every complete frame. The first bad header raises WireError."""
        if self._buffer:
            self._buffer += piece
            if len(self._buffer) < self._needed:
                return  # a frame that arrives in small pieces is copied once, not once per piece
            piece = bytes(self._buffer)
            self._buffer = bytearray()
        start, end = 0, len(piece)
        self._needed = HEADER_BYTES
        while end - start >= HEADER_BYTES:
            kind, call, head_size, data_size = HEADER.unpack_from(piece, start)
            self._check(kind, head_size, data_size)
            head_start = start + HEADER_BYTES
            data_start = head_start + head_size
            stop = data_start + data_size
            if stop > end:
                self._needed = stop - start
                break
            start = stop
            yield kind, call, piece[head_start:data_start], piece[data_start:stop]
        if start < end:
            self._buffer = bytearray(piece[start:])

    def _check(self, kind: int, head_size: int, data_size: int) -> None:
        if kind not in KINDS:
            raise WireError(f"a frame of unknown kind {kind}")
        if self._greeting:
            if kind not in GREETING_KINDS:
                raise WireError(f"a frame of kind {kind} before the greeting was over")
            if head_size > MAX_GREETING_BYTES or data_size > MAX_GREETING_BYTES:
                raise WireError(f"a greeting of {head_size + data_size} bytes")
        elif head_size > self._max_head_bytes or data_size > MAX_DATA_BYTES:
            raise WireError(f"a frame of {head_size + data_size} bytes")


def prove(secret: bytes, side: str, version: int, challenge: bytes, answer: bytes) -> bytes:
    """Return the proof that `side` has the secret. It is labelled, so that the other side cannot reuse it."""
    label = f"sandboxd {side} {version} ".encode("ascii")
    return hmac.new(secret, label + challenge + answer, hashlib.sha256).digest()


def is_proof(expected: bytes, given: bytes) -> bool:
    return hmac.compare_digest(expected, given)
