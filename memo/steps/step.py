"""StorageStep: an envelope with one operation in it. It knows what is asked, and nothing of who answers.

The same step can be written to JSON, read back and run again: a `set` twice is one record, a `get` changes nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator

from memo.errors import Unsupported
from memo.steps.calls import InvalidStep, StorageCall, invalid


class StorageStep(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    event: StorageCall

    @model_validator(mode="wrap")
    @classmethod
    def _refuse_with_code(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            raise invalid(error) from None

    async def on(self, handlers: Mapping[str, Callable[..., Any]]) -> Any:
        """Run the operation with the handler of its method, and return what that returns."""
        method = self.event.method
        handler = handlers.get(method)
        if handler is None:
            raise Unsupported(f"cannot run this step: there is no handler for {method}")
        result = handler(**_spelt_for(handler, self.event.parameters()))
        return await result if inspect.isawaitable(result) else result

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Any) -> Self:
        if not isinstance(value, Mapping):
            raise InvalidStep("cannot make this storage step: it is not a JSON object")
        return cls.model_validate(value)


def _spelt_for(handler: Callable[..., Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters as this handler spells them: `session_id` if it has such a parameter."""
    if "sessionId" not in parameters:
        return parameters
    try:
        names = inspect.signature(handler).parameters
    except (TypeError, ValueError):
        return parameters
    return {"session_id": parameters["sessionId"]} if "session_id" in names else parameters
