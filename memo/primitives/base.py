"""What every primitive is: a frozen model that exists with all its rules kept, or does not exist.

Whatever is wrong with the input, one error with the primitive's own code says so. A primitive has a JSON form; bytes
are not part of it and are resolved when it is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    StringConstraints,
    ValidationError,
    model_validator,
)

from memo.primitives.errors import InvalidPrimitive
from memo.primitives.readers import READERS, Readers, Unresolved

PrimitiveId = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=512)]
Label = Annotated[str, StringConstraints(strict=True, min_length=1)]
Score = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
When = AwareDatetime


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
        """Yield what is wrong between fields that are each all right."""
        yield from ()

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with some fields replaced, checked like any other: pydantic's own would not check."""
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**fields, **(update or {})})

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form: every field but bytes."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Any, readers: Readers | None = None) -> Self:
        """Load the JSON form. Without `readers`, whoever asks for bytes is told that there are none."""
        return cls.model_validate(value, context={READERS: readers or Unresolved()})


def refuse(kind: type[InvalidPrimitive], name: str, error: ValidationError | InvalidPrimitive) -> InvalidPrimitive:
    if isinstance(error, InvalidPrimitive):
        return kind(f"cannot make this {name}: {error}")
    # Only where and why, never the input: it may be document text.
    reasons = [f"{'.'.join(map(str, e['loc'])) or 'value'}: {e['msg']}" for e in error.errors(include_url=False)]
    return kind(f"cannot make this {name}: {'; '.join(reasons)}")
