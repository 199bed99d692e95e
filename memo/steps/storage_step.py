"""StorageStep: one operation on an agent's records, as a value with a JSON form.

The fifteen operations are a discriminated union on `method`. A step says what to do, not where the records are stored.
It can be written to JSON, read back and run again: a repeated `set` leaves one record, and a `get` changes nothing. Ids
are checked only here; records are JSON objects that keep every field.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from memo.errors import InvalidKey, MemoError, Unsupported
from memo.ids import Id
from memo.steps.step_records import plain


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
        # Encode and decode: a lone surrogate is valid in a Python string and nowhere else.
        copied: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise ValueError("it contains a value that JSON cannot hold") from None
    return copied


_Id = Annotated[str, Field(strict=True), AfterValidator(_check_id)]
_SessionId = Annotated[
    _Id, Field(validation_alias=AliasChoices("sessionId", "session_id"), serialization_alias="sessionId")
]
_JsonObject = Annotated[dict[str, Any], BeforeValidator(plain), AfterValidator(_check_json)]


class _Operation(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    method: str

    def parameters(self) -> dict[str, Any]:
        """Return the operation's parameters under their names in the contract."""
        return self.model_dump(exclude={"method"})


class GetRecord(_Operation):
    method: Literal["session.get", "message.get", "part.get", "sandbox.get", "setup.get"]
    id: _Id


class SetRecord(_Operation):
    method: Literal["session.set", "message.set", "part.set", "sandbox.set", "setup.set"]
    id: _Id
    value: _JsonObject


class UpdateRecord(_Operation):
    method: Literal["session.update", "message.update", "sandbox.update"]
    id: _Id
    updates: _JsonObject


class ListRecords(_Operation):
    method: Literal["message.listBySession", "part.listBySession"]
    session_id: _SessionId


StorageCall = Annotated[GetRecord | SetRecord | UpdateRecord | ListRecords, Field(discriminator="method")]

METHODS: tuple[str, ...] = tuple(
    method
    for operation in (GetRecord, SetRecord, UpdateRecord, ListRecords)
    for method in get_args(operation.model_fields["method"].annotation)
)
_parser: TypeAdapter[_Operation] = TypeAdapter(StorageCall)


class StorageStep(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    event: StorageCall

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_with_code(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            raise _invalid(error) from None

    async def on(self, handlers: Mapping[str, Callable[..., Any]]) -> Any:
        """Call the handler of the step's method and return its result, a typed record as its JSON form.

        A handler with one required parameter of its own name, `async def get(p)`, gets the parameters as one dict; any
        other gets them as keywords.
        """
        method = self.event.method
        handler = handlers.get(method)
        if handler is None:
            raise Unsupported(f"cannot run this step: no handler for {method}")
        parameters = self.event.parameters()
        result = handler(parameters) if _takes_one_object(handler) else handler(**_spelled_for(handler, parameters))
        return plain(await result if inspect.isawaitable(result) else result)

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Any) -> Self:
        if not isinstance(value, Mapping):
            raise InvalidStep("cannot make this storage step: it is not a JSON object")
        return cls.model_validate(value)


def parse_parameters(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Check the parameters of a direct handler call like those of a step; return them under the contract's names."""
    try:
        operation = _parser.validate_python({"method": method, **parameters})
    except ValidationError as error:
        raise _invalid(error) from None
    return operation.parameters()


def _invalid(error: ValidationError) -> InvalidStep:
    reasons = [f"{'.'.join(map(str, e['loc'])) or 'step'}: {e['msg']}" for e in error.errors(include_url=False)]
    return InvalidStep(f"cannot make this storage step: {'; '.join(reasons)}")


_PARAMETER_NAMES = frozenset({"id", "value", "updates", "sessionId", "session_id"})
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _takes_one_object(handler: Callable[..., Any]) -> bool:
    """Return whether the handler is written as `(p)`, not as `(id)`, `(id, value)` or `(**parameters)`."""
    try:
        parameters = inspect.signature(handler).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [p for p in parameters if p.default is p.empty and p.kind in _POSITIONAL]
    return len(required) == 1 and (
        required[0].kind is inspect.Parameter.POSITIONAL_ONLY or required[0].name not in _PARAMETER_NAMES
    )


def _spelled_for(handler: Callable[..., Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """Rename `sessionId` to `session_id` if the handler has a parameter of that name."""
    if "sessionId" not in parameters:
        return parameters
    try:
        names = inspect.signature(handler).parameters
    except (TypeError, ValueError):
        return parameters
    return {"session_id": parameters["sessionId"]} if "session_id" in names else parameters
