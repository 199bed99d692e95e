"""The records of storage steps as types: StepSession, StepMessage, StepPart, StepSandbox and StepSetup.

A record is stored under the contract's camelCase names and read here under snake_case attributes. Fields that a type
does not know are kept. Handlers and stores work with the JSON form; these types are for the code around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    JsonValue,
    ModelWrapValidatorHandler,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from memo.errors import InvalidContent, MemoError

Number = StrictInt | StrictFloat
JsonObject = dict[str, JsonValue]


class InvalidStepRecord(MemoError):
    code = "E_INVALID_STORAGE_RECORD"


class StepRecord(BaseModel):
    """A frozen record. `to_json` returns exactly the fields that were given, `from_json` reads them back."""

    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel, validate_by_name=True)

    kind: ClassVar[str]

    id: StrictStr

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_with_code(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            reasons = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)]
            raise InvalidStepRecord(f"cannot make this {cls.kind} record: {'; '.join(reasons)}") from None

    def to_json(self) -> dict[str, Any]:
        # Not `exclude_none`: a field that was stored as null stays null, and one that was never stored stays absent.
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        if not isinstance(value, Mapping):
            raise InvalidStepRecord(f"cannot make this {cls.kind} record: it is not a JSON object")
        return cls.model_validate(value, by_alias=True, by_name=False)

    def with_updates(self, **updates: Any) -> Self:
        """Return a validated copy with these fields replaced."""
        return self.from_json({**self.to_json(), **type(self).updates(**updates)})

    @classmethod
    def updates(cls, **fields: Any) -> dict[str, Any]:
        """Return the fields under their stored names, as an `update` takes them."""
        unknown = sorted(fields.keys() - cls.model_fields.keys())
        if unknown:
            raise InvalidStepRecord(f"cannot update this {cls.kind} record: no field {', '.join(unknown)}")
        return {to_camel(name): value for name, value in fields.items()}


class StepSession(StepRecord):
    kind = "session"

    created_at: Number
    updated_at: Number
    model: StrictStr
    system: StrictStr | None = None
    generation: JsonObject | None = None
    last_message_id: StrictStr | None = None
    active_tools: list[StrictStr] | None = None


class StepMessage(StepRecord):
    kind = "message"

    session_id: StrictStr
    role: Literal["user", "assistant"]
    created_at: Number
    usage: JsonObject | None = None
    workflow_run_id: StrictStr | None = None


class StepPart(StepRecord):
    kind = "part"

    session_id: StrictStr
    message_id: StrictStr
    type: StrictStr
    index: Number


class StepSandbox(StepRecord):
    kind = "sandbox"

    created_at: Number
    updated_at: Number
    binding: StrictStr
    metadata: JsonObject | None = None


class StepSetup(StepRecord):
    """The contract names no field of a setup record but its id."""

    kind = "setup"


RECORD_TYPES: Mapping[str, type[StepRecord]] = {
    record.kind: record for record in (StepSession, StepMessage, StepPart, StepSandbox, StepSetup)
}


def record_of(kind: str, value: Any) -> StepRecord:
    """Return a stored record of this kind as its type."""
    try:
        return RECORD_TYPES[kind].from_json(value)
    except KeyError:
        raise InvalidContent(f"cannot read this record: its kind must be one of {', '.join(RECORD_TYPES)}") from None


def plain(value: Any) -> Any:
    """Return the JSON form of a record, or of each record in a list; any other value unchanged."""
    if isinstance(value, StepRecord):
        return value.to_json()
    if isinstance(value, list | tuple) and any(isinstance(item, StepRecord) for item in value):
        return [plain(item) for item in value]
    return value
