"""Media: the handle of an image, audio, video or document, whose bytes are read on demand.

Trust tier and modality hazard must both be declared. The JSON form holds everything except the bytes.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, InstanceOf, PlainSerializer, ValidationInfo, model_validator

from memo.primitives.errors import InvalidMedia, InvalidPrimitive
from memo.primitives.primitive import Label, Primitive, PrimitiveId, TrustTier
from memo.primitives.readers import readers_of
from memo.primitives.tokenizable import Tokenizable
from memo.spool import MediaReader

MediaKind = Literal["image", "audio", "video", "document"]
ModalityHazard = Literal["inert", "extractable-instructions", "opaque-perceptual"]
"""What the content could do to a model that perceives it."""


class StashEntry(Primitive):
    """Text that stands in for the bytes, such as a caption or a transcript, with its own trust tier."""

    refusal: ClassVar[type[InvalidPrimitive]] = InvalidMedia

    value: Tokenizable
    trust_tier: TrustTier
    derived_from_media: PrimitiveId | None = None


def _read_only(stash: Mapping[str, StashEntry]) -> Mapping[str, StashEntry]:
    return MappingProxyType(dict(stash))


def _dump_stash(stash: Mapping[str, StashEntry]) -> dict[str, Any]:
    return {name: entry.to_json() for name, entry in stash.items()}


Stash = Annotated[Mapping[str, StashEntry], AfterValidator(_read_only), PlainSerializer(_dump_stash)]


class Media(Primitive):
    refusal: ClassVar[type[InvalidPrimitive]] = InvalidMedia

    id: PrimitiveId
    kind: MediaKind
    mime_type: Annotated[Label, Field(pattern=r"^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+*-]+(;.*)?$")]
    filename: Label
    reader: Annotated[InstanceOf[MediaReader], Field(exclude=True, repr=False)]
    trust_tier: TrustTier
    modality_hazard: ModalityHazard
    source: Label | None = None
    stash: Stash = Field(default_factory=lambda: MappingProxyType({}))

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, value: Any, info: ValidationInfo) -> Any:
        readers = readers_of(info.context)
        if (
            readers is not None
            and isinstance(value, dict)
            and "reader" not in value
            and isinstance(value.get("id"), str)
        ):
            return {**value, "reader": readers.media(value["id"])}
        return value

    @classmethod
    def tool_generated(cls, *, tool: str | None = None, **fields: Any) -> Self:
        """Make media that a tool produced, with a new id and the tool as its source. Trust must still be declared."""
        return cls(**{"id": str(uuid.uuid4()), "source": None if tool is None else f"tool:{tool}", **fields})

    def stream(self) -> AsyncIterator[bytes]:
        return self.reader.stream()

    async def as_bytes(self) -> bytes:
        return b"".join([block async for block in self.stream()])

    async def as_base64(self) -> str:
        return base64.b64encode(await self.as_bytes()).decode()

    def with_stash(self, name: str, entry: StashEntry) -> Self:
        """Return the same media with one more stand-in text."""
        return self.model_copy(update={"stash": {**self.stash, name: entry}})

    def __eq__(self, other: object) -> bool:
        """Compare everything except the reader, which is only a means to get the bytes."""
        return isinstance(other, Media) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.id)
