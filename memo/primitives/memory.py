"""Memory: what was learned before and still counts. How sure and how important it is, whoever loads it must say."""

from __future__ import annotations

from typing import ClassVar

from memo.primitives.base import Primitive, PrimitiveId, Score, When
from memo.primitives.errors import InvalidMemory, InvalidPrimitive
from memo.primitives.tokenizable import Tokenizable


class Memory(Primitive):
    refusal: ClassVar[type[InvalidPrimitive]] = InvalidMemory

    id: PrimitiveId
    content: Tokenizable
    confidence: Score
    importance: Score
    created_at: When
    updated_at: When
