"""Thought: reasoning, kept apart from what was said. A vendor's payload travels with the tag of its wire shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field, JsonValue

from memo.primitives.base import Label, Primitive, PrimitiveId, When
from memo.primitives.errors import InvalidPrimitive, InvalidThought
from memo.primitives.identity import Identity, Speaker
from memo.primitives.tokenizable import Tokenizable


def _assistant() -> Identity:
    return Identity(identifier="assistant", representation=Tokenizable("assistant"))


class Thought(Primitive):
    refusal: ClassVar[type[InvalidPrimitive]] = InvalidThought

    id: PrimitiveId
    content: Tokenizable
    identity: Speaker = Field(default_factory=_assistant)
    payload: JsonValue = None
    replay_compatibility: Label | None = None
    created_at: When
    updated_at: When

    def _problems(self) -> Iterator[str]:
        if self.payload is not None and self.replay_compatibility is None:
            yield "a payload needs replay_compatibility, the tag of its wire shape"

    def __hash__(self) -> int:
        return hash(self.id)  # a payload may be a dict, which has none
