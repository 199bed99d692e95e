"""Readers: where a loaded primitive finds its bytes. JSON holds only ids; `Readers` turns an id into a reader.

A spooled artifact in a field is `{"spool": id}` in JSON and gets its reader when the primitive is loaded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Protocol

from pydantic import InstanceOf, PlainSerializer, ValidationInfo, WrapValidator
from pydantic.functional_validators import ModelWrapValidatorHandler

from memo.errors import Absent
from memo.spool import MediaReader, SpooledArtifact, SpoolReader

READERS = "readers"
"""The key of the readers in pydantic's validation context."""


class Readers(Protocol):
    def media(self, id: str) -> MediaReader:
        """Return a reader of the media's bytes. Missing bytes may be noticed only at the first read."""

    def spool(self, id: str) -> SpoolReader:
        """Return a reader of the spool."""


class UnresolvedReader:
    """The reader of a primitive that was loaded without readers: it has an id, and every read raises Absent."""

    def __init__(self, id: str) -> None:
        self.id = id

    async def stream(self) -> AsyncIterator[bytes]:
        raise self._absent()
        yield b""  # makes this an async generator, which raises at the first read

    async def line(self, index: int) -> str | None:
        raise self._absent()

    async def byte_length(self) -> int:
        raise self._absent()

    async def line_count(self) -> int:
        raise self._absent()

    async def read_all(self) -> bytes:
        raise self._absent()

    def _absent(self) -> Absent:
        return Absent(f"cannot read the bytes of {self.id}: it was loaded without readers; pass `readers` to from_json")


class UnresolvedReaders:
    def media(self, id: str) -> MediaReader:
        return UnresolvedReader(id)

    def spool(self, id: str) -> SpoolReader:
        return UnresolvedReader(id)


def readers_of(context: Any) -> Readers | None:
    return context.get(READERS) if isinstance(context, dict) else None


def is_artifact(value: Any) -> bool:
    return isinstance(value, SpooledArtifact) or (isinstance(value, dict) and value.keys() == {"spool"})


def _load_artifact(value: Any, handler: ModelWrapValidatorHandler[Any], info: ValidationInfo) -> Any:
    readers = readers_of(info.context)
    if readers is not None and isinstance(value, dict) and isinstance(value.get("spool"), str):
        return SpooledArtifact(readers.spool(value["spool"]), value["spool"])
    return handler(value)


def _dump_artifact(artifact: SpooledArtifact) -> dict[str, str]:
    return {"spool": artifact.id}


ArtifactField = Annotated[InstanceOf[SpooledArtifact], WrapValidator(_load_artifact), PlainSerializer(_dump_artifact)]
