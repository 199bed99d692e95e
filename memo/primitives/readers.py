"""Where the bytes of a loaded primitive come from. JSON holds ids only; a `Readers` turns them into readers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from memo.errors import Absent
from memo.spool.contract import MediaReader, SpoolReader

READERS = "readers"
"""The key of the validation context."""


class Readers(Protocol):
    def media(self, id: str) -> MediaReader:
        """Return a reader of the media's bytes. It may find out only when it is read that there are none."""

    def spool(self, id: str) -> SpoolReader:
        """Return a reader of the spool."""


class UnresolvedReader:
    """Stands for bytes that nobody said where to find. Knows its id; raises when it is read."""

    def __init__(self, id: str) -> None:
        self.id = id

    async def stream(self) -> AsyncIterator[bytes]:
        raise self._absent()
        yield b""  # makes this a generator, so that it raises where it is read

    async def line(self, index: int) -> str | None:
        raise self._absent()

    async def byte_length(self) -> int:
        raise self._absent()

    async def line_count(self) -> int:
        raise self._absent()

    async def read_all(self) -> bytes:
        raise self._absent()

    def _absent(self) -> Absent:
        return Absent(f"cannot read the bytes of {self.id}: it was loaded without readers")


class Unresolved:
    def media(self, id: str) -> MediaReader:
        return UnresolvedReader(id)

    def spool(self, id: str) -> SpoolReader:
        return UnresolvedReader(id)


def readers_of(context: Any) -> Readers | None:
    return context.get(READERS) if isinstance(context, dict) else None
