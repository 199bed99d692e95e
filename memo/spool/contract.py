"""The contract of a spool: write bytes under an id, get a reader that never changes, read lines or ranges of it.

A reader shows the bytes as they were written, to the last one. If its bytes are replaced or deleted later it raises;
it never shows a mixture.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Protocol, runtime_checkable

from memo.errors import Absent, InvalidContent

SpoolBytes = str | bytes | bytearray | memoryview | AsyncIterable[bytes]

BLOCK_BYTES = 1024 * 1024


@runtime_checkable
class MediaReader(Protocol):
    """Bytes that can be opened again and again. What a `Media` needs."""

    def stream(self) -> AsyncIterator[bytes]:
        """Yield the bytes from the first, in pieces of bounded size. Each call begins anew."""


@runtime_checkable
class SpoolReader(Protocol):
    """Any object with these four will do; our own readers also have `stream`, `read_range` and `read_lines`.

    Lines are counted from 0, end with \\n or \\r\\n, and are given without their ends.
    """

    async def line(self, index: int) -> str | None:
        """Return one line as text (what is not UTF-8 becomes U+FFFD), or None if there is no such line."""

    async def byte_length(self) -> int: ...

    async def line_count(self) -> int: ...

    async def read_all(self) -> bytes:
        """Return every byte as it was written."""


class ByteStore(Protocol):
    async def write(self, id: str, data: SpoolBytes) -> SpoolReader:
        """Keep the bytes under the id, durably where the spool is, whole or not at all; return their reader."""

    async def read(self, id: str) -> SpoolReader | None:
        """Return a reader of what was written last, or None if nothing was."""

    async def delete(self, id: str) -> None:
        """Remove the bytes. Nothing to remove is no error."""


async def blocks_of(data: SpoolBytes, size_bytes: int = BLOCK_BYTES) -> AsyncIterator[bytes]:
    """Yield what is to be written in blocks of exactly `size_bytes`, the last one shorter."""
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError:
            raise InvalidContent("cannot spool this text: it holds half of a surrogate pair") from None
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
            raise InvalidContent("cannot spool this stream: it yields something that is not bytes")
        held += piece
        while len(held) >= size_bytes:
            yield bytes(held[:size_bytes])
            del held[:size_bytes]
    if held:
        yield bytes(held)


def gone(id: str) -> Absent:
    return Absent(f"cannot read spool {id}: its bytes were replaced or deleted")
