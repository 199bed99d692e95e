"""The fifteen handlers over any keeper of records: what each operation means, once, for disk and store alike.

A handler takes its parameters as keywords and checks them like a step's. The whole is also a storage function: called
with a step, it runs the step.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol

from memo.errors import InvalidContent
from memo.steps.calls import METHODS, parse_call
from memo.steps.step import StorageStep

Value = dict[str, Any]


class Keeper(Protocol):
    """Where records of a kind are: `session`, `message`, `part`, `sandbox`, `setup`."""

    async def get(self, kind: str, id: str) -> Value | None: ...

    async def set(self, kind: str, id: str, value: Value) -> None:
        """Keep the value, durably, whole or not at all."""

    async def update(self, kind: str, id: str, updates: Value) -> Value:
        """Lay the fields over the record's own, atomically, and return it. Absent if there is no such record."""

    async def list_by_session(self, kind: str, session: str) -> list[Value]:
        """Return the records whose `sessionId` it is, in the order of their making where that is known."""


class Handlers(dict[str, Callable[..., Awaitable[Any]]]):
    def __init__(self, keeper: Keeper) -> None:
        super().__init__({method: _named(method, partial(_run, keeper, method)) for method in METHODS})

    async def __call__(self, step: StorageStep) -> Any:
        return await step.on(self)


def _named(method: str, run: Callable[[Value], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def handler(**parameters: Any) -> Any:
        return await run(parameters)

    handler.__name__ = handler.__qualname__ = method
    return handler


async def _run(keeper: Keeper, method: str, parameters: Value) -> Any:
    checked = parse_call(method, parameters)
    kind, _, verb = method.partition(".")
    if verb == "get":
        return await keeper.get(kind, checked["id"])
    if verb == "set":
        _check_same_id(method, checked["id"], checked["value"])
        return await keeper.set(kind, checked["id"], checked["value"])
    if verb == "update":
        _check_same_id(method, checked["id"], checked["updates"])
        return await keeper.update(kind, checked["id"], checked["updates"])
    found = await keeper.list_by_session(kind, checked["sessionId"])
    return _ordered_messages(found) if kind == "message" else _ordered_parts(found)


def _check_same_id(method: str, id: str, value: Value) -> None:
    if value.get("id", id) != id:
        raise InvalidContent(f"cannot run {method} of {id}: the record says that it is another")


def _ordered_messages(found: list[Value]) -> list[Value]:
    """By the time of creation; equals stay as the keeper gave them."""
    return sorted(found, key=lambda value: _number(value.get("createdAt")))


def _ordered_parts(found: list[Value]) -> list[Value]:
    """The parts of a message together, by their position in it; messages in the order of their first part."""
    messages = {str(value.get("messageId")): None for value in found}
    ranks = {message: rank for rank, message in enumerate(messages)}
    return sorted(found, key=lambda value: (ranks[str(value.get("messageId"))], _number(value.get("index"))))


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
