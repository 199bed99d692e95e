"""ByteStore: the contract of a spool. Write bytes under an id and read them back, whole or by line.

A reader returns exactly the bytes that were written. Once they are replaced or deleted it raises Absent; it never
returns a mixture of old and new.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Protocol, runtime_checkable

from memo.errors import Absent, InvalidContent

SpoolBytes = str | bytes | bytearray | memoryview | AsyncIterable[bytes]

BLOCK_BYTES = 1024 * 1024


@runtime_checkable
class MediaReader(Protocol):
    """Bytes that can be streamed any number of times; the reader that a `Media` needs."""

    def stream(self) -> AsyncIterator[bytes]:
        """Yield all bytes in blocks of bounded size. Each call starts at the first byte."""


@runtime_checkable
class SpoolReader(Protocol):
    """The four methods that any reader needs; the readers here also have `stream`, `read_range` and `read_lines`.

    Lines are numbered from 0, end with \\n or \\r\\n, and are returned without the line ending.
    """

    async def line(self, index: int) -> str | None:
        """Return one line as text, invalid UTF-8 replaced by U+FFFD, or None if there is no such line."""

    async def byte_length(self) -> int: ...

    async def line_count(self) -> int: ...

    async def read_all(self) -> bytes:
        """Return all bytes as they were written."""


class ByteStore(Protocol):
    async def write(self, id: str, data: SpoolBytes) -> SpoolReader:
        """Store the bytes under the id, atomically, and return a reader for them."""

    async def read(self, id: str) -> SpoolReader | None:
        """Return a reader for the bytes written last, or None if there are none."""

    async def delete(self, id: str) -> None:
        """Remove the bytes. It is not an error if there are none."""


async def blocks_of(data: SpoolBytes, size_bytes: int = BLOCK_BYTES) -> AsyncIterator[bytes]:
    """Yield the data in blocks of exactly `size_bytes`; only the last may be shorter."""
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError:
            raise InvalidContent("cannot spool this text: it contains a lone surrogate") from None
    if isinstance(data, bytes | bytearray | memoryview):
        view = memoryview(data).cast("B")
        for start in range(0, len(view), size_bytes):
            yield bytes(view[start : start + size_bytes])
        return
    if not isinstance(data, AsyncIterable):
        raise InvalidContent("cannot spool this: expected text, bytes or an async stream of bytes")
    held = bytearray()
    async for piece in data:
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise InvalidContent("cannot spool this stream: it yields a value that is not bytes")
        held += piece
        while len(held) >= size_bytes:
            yield bytes(held[:size_bytes])
            del held[:size_bytes]
    if held:
        yield bytes(held)


def replaced_or_deleted(id: str) -> Absent:
    return Absent(f"cannot read spool {id}: its bytes were replaced or deleted")
