"""Identity: who speaks, as the program knows them and as the model sees them. The two are never collapsed."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, StrictInt

from memo.primitives.base import Label, Primitive
from memo.primitives.errors import InvalidIdentity, InvalidPrimitive
from memo.primitives.tokenizable import Tokenizable


class Identity(Primitive):
    refusal: ClassVar[type[InvalidPrimitive]] = InvalidIdentity

    identifier: Label | StrictInt
    representation: Tokenizable


def _from_text(value: Any) -> Any:
    """A bare string names both views: right only where there is one user."""
    return Identity(identifier=value, representation=Tokenizable(value)) if isinstance(value, str) else value


Speaker = Annotated[Identity, BeforeValidator(_from_text)]
