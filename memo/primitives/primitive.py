"""Primitive: the frozen, validated base model of every primitive, and the field types they share.

Any invalid input raises one error with the primitive's own code. A primitive has a JSON form without bytes; readers of
the bytes are attached when it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    StringConstraints,
    ValidationError,
    model_validator,
)

from memo.primitives.errors import InvalidPrimitive
from memo.primitives.readers import READERS, Readers, UnresolvedReaders

PrimitiveId = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=512)]
Label = Annotated[str, StringConstraints(strict=True, min_length=1)]
Score = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]

TrustTier = Literal["first-party", "third-party-public", "third-party-private"]
"""Where content comes from. Always declared by the code that loads it, never inferred."""


class Primitive(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    refusal: ClassVar[type[InvalidPrimitive]] = InvalidPrimitive

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_with_code(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            made = handler(value)
        except (ValidationError, InvalidPrimitive) as error:
            raise refuse(cls.refusal, cls.__name__, error) from None
        problems = list(made._problems())
        if problems:
            raise cls.refusal(f"cannot make this {cls.__name__}: {'; '.join(problems)}")
        return made

    def _problems(self) -> Iterator[str]:
        """Yield each cross-field rule that this value breaks."""
        yield from ()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a validated copy with some fields replaced; pydantic's own `model_copy` does not validate."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **(update or {})})

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form: every field except bytes."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Any, readers: Readers | None = None) -> Self:
        """Load the JSON form. Without `readers`, reading its bytes raises Absent."""
        return cls.model_validate(value, context={READERS: readers or UnresolvedReaders()})


def refuse(kind: type[InvalidPrimitive], name: str, error: ValidationError | InvalidPrimitive) -> InvalidPrimitive:
    if isinstance(error, InvalidPrimitive):
        return kind(f"cannot make this {name}: {error}")
    # The field and the reason, never the input: it may be document text.
    reasons = [f"{'.'.join(map(str, e['loc'])) or 'value'}: {e['msg']}" for e in error.errors(include_url=False)]
    return kind(f"cannot make this {name}: {'; '.join(reasons)}")
