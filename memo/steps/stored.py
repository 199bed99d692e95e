"""Storage steps on a real store: every record one of the store's, listed by its session through the record's group."""

from __future__ import annotations

from memo.records import Merge, Put, RecordScope, require_records
from memo.steps.handlers import Handlers, Value


def store_handlers(store: object, *, tenant: str = "local", place: str = "steps") -> Handlers:
    """Return the fifteen handlers over a store that keeps records. `place` tells one agent's records from another's."""
    return Handlers(_Stored(store, tenant, place))


class _Stored:
    def __init__(self, store: object, tenant: str, place: str) -> None:
        self._store = require_records(store)
        self._tenant = tenant
        self._place = place
        self._scope("session")  # ids are checked now, not at the first step

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
    """Return the session that a record names; None if the fields do not speak of one."""
    if "sessionId" not in value:
        return None
    session = value["sessionId"]
    return session if isinstance(session, str) else ""
