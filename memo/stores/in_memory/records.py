"""Records in memory. A batch is computed on a copy, which replaces the records between two awaits.

A mixin for a store that has `_turn`. Values are stored as JSON text, so that a caller cannot change a record through a
value that it passed in or received.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from memo.messages import decode_object
from memo.records import (
    Record,
    RecordChange,
    RecordKey,
    RecordScope,
    Value,
    checked_group,
    encode_record,
    needs_current,
    outcome,
    tenant_of,
)
from memo.stores.options import StoreOptions


@dataclass(frozen=True, slots=True)
class _Kept:
    body: str
    group: str


@dataclass(slots=True)
class RecordBook:
    """The records of each scope, in the order in which they were first put. Never awaits."""

    scopes: dict[RecordScope, dict[str, _Kept]] = field(default_factory=dict)

    def apply(self, changes: Sequence[RecordChange], limit_bytes: int) -> list[Value | None]:
        pending: dict[RecordKey, _Kept | None] = {}
        steps: list[tuple[RecordKey, _Kept | None]] = []
        results: list[Value | None] = []
        for change in changes:
            key = change.key
            kept = (pending[key] if key in pending else self._find(key)) if needs_current(change) else None
            after = outcome(change, _decoded(key, kept))
            kept = None if after is None else _Kept(encode_record(key, after, limit_bytes), after.group)
            pending[key] = kept
            steps.append((key, kept))
            results.append(None if after is None else after.value)
        for key, kept in steps:  # from here on nothing can fail
            if kept is None:
                self.scopes.get(key.scope, {}).pop(key.id, None)
            else:
                self.scopes.setdefault(key.scope, {})[key.id] = kept
        return results

    def read(self, key: RecordKey) -> Record | None:
        return _decoded(key, self._find(key))

    def list_of(self, scope: RecordScope, group: str | None) -> list[Record]:
        chosen = [id for id, kept in self.scopes.get(scope, {}).items() if group in (None, kept.group)]
        return [record for id in chosen if (record := self.read(scope.key(id))) is not None]

    def _find(self, key: RecordKey) -> _Kept | None:
        return self.scopes.get(key.scope, {}).get(key.id)


class InMemoryRecords(ABC):
    options: StoreOptions
    _record_book: RecordBook | None = None

    @abstractmethod
    async def _turn(self) -> None: ...

    async def apply_records(self, changes: Sequence[RecordChange]) -> list[Value | None]:
        if not changes:
            return []
        tenant_of(changes)
        return (await self._records()).apply(changes, self.options.limits.message_bytes)

    async def read_record(self, key: RecordKey) -> Record | None:
        return (await self._records()).read(key)

    async def list_records(self, scope: RecordScope, group: str | None = None) -> list[Record]:
        wanted = None if group is None else checked_group(group)
        return (await self._records()).list_of(scope, wanted)

    async def _records(self) -> RecordBook:
        await self._turn()
        if self._record_book is None:
            self._record_book = RecordBook()
        return self._record_book


def _decoded(key: RecordKey, kept: _Kept | None) -> Record | None:
    return None if kept is None else Record(key.id, decode_object(kept.body, str(key)), kept.group)
