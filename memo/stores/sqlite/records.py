"""Records in SQLite: one row per record, one transaction per batch. Row ids preserve the order of the first puts.

The functions run inside a transaction of the caller; the class is a mixin for the store.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

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
from memo.stores.sqlite.contents import decoded
from memo.stores.sqlite.database import Database


class SQLiteRecords:
    options: StoreOptions
    _database: Database

    async def apply_records(self, changes: Sequence[RecordChange]) -> list[Value | None]:
        if not changes:
            return []
        tenant_of(changes)
        return await self._database.write(lambda db: apply(db, changes, self.options.limits.message_bytes))

    async def read_record(self, key: RecordKey) -> Record | None:
        return await self._database.read(lambda db: read(db, key))

    async def list_records(self, scope: RecordScope, group: str | None = None) -> list[Record]:
        wanted = None if group is None else checked_group(group)
        return await self._database.read(lambda db: list_of(db, scope, wanted))


def apply(db: sqlite3.Connection, changes: Sequence[RecordChange], limit_bytes: int) -> list[Value | None]:
    results: list[Value | None] = []
    for change in changes:
        after = outcome(change, read(db, change.key) if needs_current(change) else None)
        if after is None:
            db.execute(
                "DELETE FROM records WHERE tenant = ? AND kind = ? AND place = ? AND id = ?", _params(change.key)
            )
        else:
            db.execute(
                """INSERT INTO records (tenant, kind, place, id, group_name, body) VALUES (?, ?, ?, ?, ?, ?)
                   ON CONFLICT (tenant, kind, place, id) DO UPDATE SET
                   group_name = excluded.group_name, body = excluded.body""",
                (*_params(change.key), after.group, encode_record(change.key, after, limit_bytes)),
            )
        results.append(None if after is None else after.value)
    return results


def read(db: sqlite3.Connection, key: RecordKey) -> Record | None:
    row = db.execute(
        "SELECT id, CAST(body AS BLOB), group_name FROM records WHERE tenant = ? AND kind = ? AND place = ? AND id = ?",
        _params(key),
    ).fetchone()
    return None if row is None else _record(key.scope, *row)


def list_of(db: sqlite3.Connection, scope: RecordScope, group: str | None) -> list[Record]:
    rows = db.execute(
        """SELECT id, CAST(body AS BLOB), group_name FROM records
           WHERE tenant = ? AND kind = ? AND place = ? ORDER BY position"""
        if group is None
        else """SELECT id, CAST(body AS BLOB), group_name FROM records
                WHERE tenant = ? AND kind = ? AND place = ? AND group_name = ? ORDER BY position""",
        (scope.tenant, scope.kind, scope.place, *(() if group is None else (group,))),
    )
    return [_record(scope, *row) for row in rows]


def _record(scope: RecordScope, id: str, body: bytes, group: str) -> Record:
    place = f"{scope.kind} {id}"
    return Record(id, decode_object(decoded(body, place), place), group)


def _params(key: RecordKey) -> tuple[str, str, str, str]:
    return (key.scope.tenant, key.scope.kind, key.scope.place, key.id)
