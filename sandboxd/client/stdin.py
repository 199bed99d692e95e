"""The stdin of a command: a small one is part of the call, a larger one is streamed after it.

A source is read in chunks, and only one chunk is held at a time.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Protocol, runtime_checkable

from sandboxd.client.request import encode_text
from sandboxd.errors import InvalidRequest

PIECE_BYTES = 65_536
WRITE_BYTES = 1_048_576
"""How much of a write to a process's stdin one request holds."""
INLINE_BYTES = 1_048_576
"""A larger stdin is streamed, unless the call must be repeatable."""
MAX_INLINE_BYTES = 16_777_216
MAX_KEY_CHARS = 255


@runtime_checkable
class BinaryFile(Protocol):
    def read(self, size: int, /) -> bytes: ...


Stdin = str | bytes | BinaryFile | Iterable[bytes] | None
AsyncStdin = Stdin | AsyncIterable[bytes]


def inline_stdin(stdin: AsyncStdin, key: str | None) -> tuple[str | bytes | None, bool]:
    """Return the stdin to put into the call, and whether stdin is streamed instead."""
    if stdin is None or isinstance(stdin, str | bytes):
        size = 0 if stdin is None else len(stdin) if isinstance(stdin, bytes) else _size_of(stdin)
        if size <= INLINE_BYTES or (key is not None and size <= MAX_INLINE_BYTES):
            return stdin, False
    if key is not None:
        raise InvalidRequest(
            f"cannot use an idempotency key with stdin that is streamed or has more than {MAX_INLINE_BYTES} bytes: "
            "write it to a file of the sandbox first"
        )
    return None, True


def part_key(key: str | None, offset: int) -> str | None:
    """Return the idempotency key of one request of a write, so that the whole write can be repeated."""
    if key is None or not offset:
        return key
    part = f"{key}:{offset}"
    if len(part) <= MAX_KEY_CHARS:
        return part
    import hashlib  # imported only for a long key, to keep the command line fast

    return hashlib.sha256(part.encode()).hexdigest()


def pieces_of(stdin: Stdin) -> Iterator[bytes]:
    """Yield stdin in chunks."""
    if isinstance(stdin, str):
        stdin = encode_text(stdin)
    if isinstance(stdin, bytes):
        for start in range(0, len(stdin), PIECE_BYTES):
            yield stdin[start : start + PIECE_BYTES]
        return
    yield from checked(_read(stdin) if isinstance(stdin, BinaryFile) else stdin or ())


async def async_pieces_of(stdin: AsyncStdin) -> AsyncIterator[bytes]:
    """Yield stdin in chunks; read a blocking source in a thread."""
    if isinstance(stdin, AsyncIterable):
        async for piece in async_checked(stdin):
            yield piece
    elif isinstance(stdin, str | bytes):
        for piece in pieces_of(stdin):
            yield piece
    else:
        import asyncio  # only the async client gets here

        source = pieces_of(stdin)
        while (next_piece := await asyncio.to_thread(next, source, None)) is not None:
            yield next_piece


def checked(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks of a source; raise InvalidRequest for one that is not bytes."""
    for piece in pieces:
        yield _as_bytes(piece)


async def async_checked(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        yield _as_bytes(piece)


def _as_bytes(piece: object) -> bytes:
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    raise InvalidRequest(
        f"cannot send this content: it consists of {type(piece).__name__}, not bytes; open a file in binary mode"
    )


def _read(file: BinaryFile) -> Iterator[bytes]:
    read = getattr(file, "read1", file.read)  # read1 returns what is available, so a pipe is forwarded as it fills
    while piece := read(PIECE_BYTES):
        yield piece


def _size_of(text: str) -> int:
    return len(text) if text.isascii() or len(text) > MAX_INLINE_BYTES else len(encode_text(text))
