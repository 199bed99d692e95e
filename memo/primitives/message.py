"""Message, Thought and Identity: what was said, what was reasoned, and the speaker.

A message is from a user or from the assistant; tool results and system prompts are other primitives. Reasoning is kept
separate from what was said, and a vendor's payload carries the tag of its wire format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, JsonValue, StrictInt

from memo.primitives.errors import InvalidIdentity, InvalidMessage, InvalidPrimitive, InvalidThought
from memo.primitives.media import Media
from memo.primitives.primitive import Label, Primitive, PrimitiveId
from memo.primitives.tokenizable import Tokenizable
from memo.primitives.when import When


class Identity(Primitive):
    """The speaker: `identifier` is for the program, `representation` for the model. The two are never conflated."""

    refusal: ClassVar[type[InvalidPrimitive]] = InvalidIdentity

    identifier: Label | StrictInt
    representation: Tokenizable


def _from_text(value: Any) -> Any:
    """Use one string for both, which is correct only if there is a single user."""
    return Identity(identifier=value, representation=Tokenizable(value)) if isinstance(value, str) else value


Speaker = Annotated[Identity, BeforeValidator(_from_text)]


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
            yield "a payload needs replay_compatibility, the tag of its wire format"

    def __hash__(self) -> int:
        return hash(self.id)  # a payload may be a dict, which is not hashable
