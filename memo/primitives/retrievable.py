"""Retrievable: what was fetched for this turn, with the trust that whoever fetched it declares. It is never guessed."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag

from memo.primitives.artifacts import ArtifactField, is_artifact
from memo.primitives.base import Label, Primitive, PrimitiveId, When
from memo.primitives.errors import InvalidPrimitive, InvalidRetrievable
from memo.primitives.tokenizable import Tokenizable
from memo.primitives.trust import TrustTier


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
