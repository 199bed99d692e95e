"""Message: one thing said, by a user or by the assistant. What a tool returns or a system demands is no message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from memo.primitives.base import Primitive, PrimitiveId, When
from memo.primitives.errors import InvalidMessage, InvalidPrimitive
from memo.primitives.identity import Speaker
from memo.primitives.media import Media
from memo.primitives.tokenizable import Tokenizable


class Message(Primitive):
    refusal: ClassVar[type[InvalidPrimitive]] = InvalidMessage

    id: PrimitiveId
    role: Literal["user", "assistant"]
    content: Tokenizable | None = None
    attachments: tuple[Media, ...] | None = None
    identity: Speaker
    created_at: When
    updated_at: When

    def _problems(self) -> Iterator[str]:
        if self.content is None and not self.attachments:
            yield "a message needs content or attachments"
