"""Handlers: the fifteen operations, implemented once for every kind of storage.

A handler takes its parameters as keywords or as one mapping, and checks them like a step's. `Handlers` is also a
storage function: called with a step, it runs the step. `store_handlers` builds them on a store that keeps records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Protocol

from memo.errors import InvalidContent
from memo.records import Merge, Put, RecordScope, require_records
from memo.steps.storage_step import METHODS, StorageStep, parse_parameters

Value = dict[str, Any]


class StepStorage(Protocol):
    """Keeps records of five kinds: `session`, `message`, `part`, `sandbox` and `setup`."""

    async def get(self, kind: str, id: str) -> Value | None: ...

    async def set(self, kind: str, id: str, value: Value) -> None:
        """Store the value durably and atomically."""

    async def update(self, kind: str, id: str, updates: Value) -> Value:
        """Replace these fields of the record atomically and return it. Raise Absent if there is no such record."""

    async def list_by_session(self, kind: str, session: str) -> list[Value]:
        """Return the records with this `sessionId`, in order of creation if the storage records it."""


class Handlers(dict[str, Callable[..., Awaitable[Any]]]):
    def __init__(self, storage: StepStorage) -> None:
        super().__init__({method: _handler(method, partial(_run, storage, method)) for method in METHODS})

    async def __call__(self, step: StorageStep) -> Any:
        return await step.on(self)


def store_handlers(store: object, *, tenant: str = "local", place: str = "steps") -> Handlers:
    """Return the fifteen handlers for a store that keeps records. `place` separates the records of different agents."""
    return Handlers(StoreRecords(store, tenant, place))


class StoreRecords:
    """Stores the records of storage steps in a store. A record is grouped, and listed, by its session."""

    def __init__(self, store: object, tenant: str, place: str) -> None:
        self._store = require_records(store)
        self._tenant = tenant
        self._place = place
        self._scope("session")  # an invalid tenant or place fails now, not at the first step

    async def get(self, kind: str, id: str) -> Value | None:
        record = await self._store.read_record(self._scope(kind).key(id))
        return None if record is None else record.value

    async def set(self, kind: str, id: str, value: Value) -> None:
        await self._store.apply_records([Put(self._scope(kind).key(id), value, group=_session_of(value) or "")])

    async def update(self, kind: str, id: str, updates: Value) -> Value:
        change = Merge(self._scope(kind).key(id), updates, group=_session_of(updates))
        (merged,) = await self._store.apply_records([change])
        return merged or {}

    async def list_by_session(self, kind: str, session: str) -> list[Value]:
        return [record.value for record in await self._store.list_records(self._scope(kind), group=session)]

    def _scope(self, kind: str) -> RecordScope:
        return RecordScope.of(self._tenant, f"step.{kind}", self._place)


def _session_of(value: Value) -> str | None:
    """Return the session that the fields name; None if they have no `sessionId`."""
    if "sessionId" not in value:
        return None
    session = value["sessionId"]
    return session if isinstance(session, str) else ""


def _handler(method: str, run: Callable[[Value], Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def handler(parameters: Mapping[str, Any] | None = None, /, **named: Any) -> Any:
        return await run({**(parameters or {}), **named})

    handler.__name__ = handler.__qualname__ = method
    return handler


async def _run(storage: StepStorage, method: str, parameters: Value) -> Any:
    checked = parse_parameters(method, parameters)
    kind, _, verb = method.partition(".")
    if verb == "get":
        return await storage.get(kind, checked["id"])
    if verb == "set":
        _check_same_id(method, checked["id"], checked["value"])
        return await storage.set(kind, checked["id"], checked["value"])
    if verb == "update":
        _check_same_id(method, checked["id"], checked["updates"])
        return await storage.update(kind, checked["id"], checked["updates"])
    found = await storage.list_by_session(kind, checked["sessionId"])
    return _ordered_messages(found) if kind == "message" else _ordered_parts(found)


def _check_same_id(method: str, id: str, value: Value) -> None:
    if value.get("id", id) != id:
        raise InvalidContent(f"cannot run {method} of {id}: the record has another id; make the two ids equal")


def _ordered_messages(found: list[Value]) -> list[Value]:
    """Sort by creation time; messages with the same time keep the storage's order."""
    return sorted(found, key=lambda value: _number(value.get("createdAt")))


def _ordered_parts(found: list[Value]) -> list[Value]:
    """Group the parts of a message, sorted by `index`; messages are in the order of their first parts."""
    messages = {str(value.get("messageId")): None for value in found}
    ranks = {message: rank for rank, message in enumerate(messages)}
    return sorted(found, key=lambda value: (ranks[str(value.get("messageId"))], _number(value.get("index"))))


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
