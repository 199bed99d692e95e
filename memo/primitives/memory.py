"""Memory and Retrievable: what an agent learned before, and what was fetched for this turn.

The code that loads them declares confidence, importance and trust; nothing is inferred.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag

from memo.primitives.errors import InvalidMemory, InvalidPrimitive, InvalidRetrievable
from memo.primitives.primitive import Label, Primitive, PrimitiveId, Score, TrustTier
from memo.primitives.readers import ArtifactField, is_artifact
from memo.primitives.tokenizable import Tokenizable
from memo.primitives.when import When


class Memory(Primitive):
    refusal: ClassVar[type[InvalidPrimitive]] = InvalidMemory

    id: PrimitiveId
    content: Tokenizable
    confidence: Score
    importance: Score
    created_at: When
    updated_at: When


def _form(value: Any) -> str:
    return "artifact" if is_artifact(value) else "text"


class Retrievable(Primitive):
    refusal: ClassVar[type[InvalidPrimitive]] = InvalidRetrievable

    id: PrimitiveId
    content: Annotated[
        Annotated[Tokenizable, Tag("text")] | Annotated[ArtifactField, Tag("artifact")], Discriminator(_form)
    ]
    trust_tier: TrustTier
    source: Label | None = None
    kind: Label | None = None
    score: Annotated[float, Field(strict=True, allow_inf_nan=False)] | None = None
    created_at: When
    updated_at: When
