"""The fifteen operations as values: a discriminated union on `method`, in JSON as in Python.

Records are JSON objects and are kept as given, whatever fields they have. Ids are checked here and nowhere else.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from memo.errors import InvalidKey, MemoError
from memo.ids import Id


class InvalidStep(MemoError):
    code = "E_INVALID_STORAGE_STEP"


class StepId(Id):
    __slots__ = ()
    noun = "id of a step"


def _check_id(text: str) -> str:
    try:
        return str(StepId(text))
    except InvalidKey as error:
        raise ValueError(str(error)) from None


def _check_json(value: dict[str, Any]) -> dict[str, Any]:
    try:
        # To bytes and back: half of a surrogate pair is text in Python and nowhere else.
        copied: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise ValueError("it holds something that is not JSON") from None
    return copied


Name = Annotated[str, Field(strict=True), AfterValidator(_check_id)]
Fields = Annotated[dict[str, Any], AfterValidator(_check_json)]
SessionName = Annotated[
    Name, Field(validation_alias=AliasChoices("sessionId", "session_id"), serialization_alias="sessionId")
]


class _Call(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    method: str

    def parameters(self) -> dict[str, Any]:
        """Return the operation's parameters under the names of the contract."""
        return self.model_dump(exclude={"method"})


class _Get(_Call):
    id: Name


class _Set(_Call):
    id: Name
    value: Fields


class _Update(_Call):
    id: Name
    updates: Fields


class _List(_Call):
    session_id: SessionName


class SessionGet(_Get):
    method: Literal["session.get"]


class SessionSet(_Set):
    method: Literal["session.set"]


class SessionUpdate(_Update):
    method: Literal["session.update"]


class MessageGet(_Get):
    method: Literal["message.get"]


class MessageSet(_Set):
    method: Literal["message.set"]


class MessageUpdate(_Update):
    method: Literal["message.update"]


class MessageList(_List):
    method: Literal["message.listBySession"]


class PartGet(_Get):
    method: Literal["part.get"]


class PartSet(_Set):
    method: Literal["part.set"]


class PartList(_List):
    method: Literal["part.listBySession"]


class SandboxGet(_Get):
    method: Literal["sandbox.get"]


class SandboxSet(_Set):
    method: Literal["sandbox.set"]


class SandboxUpdate(_Update):
    method: Literal["sandbox.update"]


class SetupGet(_Get):
    method: Literal["setup.get"]


class SetupSet(_Set):
    method: Literal["setup.set"]


StorageCall = Annotated[
    SessionGet
    | SessionSet
    | SessionUpdate
    | MessageGet
    | MessageSet
    | MessageUpdate
    | MessageList
    | PartGet
    | PartSet
    | PartList
    | SandboxGet
    | SandboxSet
    | SandboxUpdate
    | SetupGet
    | SetupSet,
    Field(discriminator="method"),
]

METHODS: tuple[str, ...] = tuple(
    get_args(variant.model_fields["method"].annotation)[0] for variant in get_args(get_args(StorageCall)[0])
)
_parser: TypeAdapter[Any] = TypeAdapter(StorageCall)


def parse_call(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Check parameters given to a handler by hand as a step's would be; return them under the contract's names."""
    try:
        call: _Call = _parser.validate_python({"method": method, **parameters})
    except ValidationError as error:
        raise invalid(error) from None
    return call.parameters()


def invalid(error: ValidationError) -> InvalidStep:
    reasons = [f"{'.'.join(map(str, e['loc'])) or 'step'}: {e['msg']}" for e in error.errors(include_url=False)]
    return InvalidStep(f"cannot make this storage step: {'; '.join(reasons)}")
