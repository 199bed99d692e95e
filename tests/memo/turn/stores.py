"""Stores that keep records, opened by name, for every test of the turn contract."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from memo.records import has_records
from memo.stores.filesystem.records import FilesystemRecords
from memo.stores.filesystem.store import FilesystemStore
from memo.stores.in_memory import InMemoryStore
from memo.stores.in_memory_records import InMemoryRecords
from memo.stores.sqlite.records import SQLiteRecords
from memo.stores.sqlite.records_schema import RECORDS_MIGRATION
from memo.stores.sqlite.store import SQLiteStore

STORES = ("memory", "sqlite", "filesystem")
DURABLE = ("sqlite", "filesystem")


class RecordingInMemory(InMemoryStore, InMemoryRecords):
    pass


class RecordingFilesystem(FilesystemStore, FilesystemRecords):
    pass


class RecordingSQLite(SQLiteStore, SQLiteRecords):
    async def open(self) -> None:
        await super().open()
        await self._database.write(_make_table)


def _make_table(db: sqlite3.Connection) -> None:
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'records'").fetchone() is None:
        for statement in RECORDS_MIGRATION:
            db.execute(statement)


def make(kind: str, path: Path) -> Any:
    """Return the store itself if it keeps records, else the store with its records mixed in."""
    if kind == "memory":
        return InMemoryStore() if has_records(InMemoryStore) else RecordingInMemory()
    if kind == "sqlite":
        own = SQLiteStore(path / "memo.db") if has_records(SQLiteStore) else None
        return own or RecordingSQLite(path / "memo.db")
    settings: dict[str, Any] = {"watch": False}
    own_files = FilesystemStore(path / "files", **settings) if has_records(FilesystemStore) else None
    return own_files or RecordingFilesystem(path / "files", **settings)


@asynccontextmanager
async def opened(kind: str, path: Path) -> AsyncIterator[Any]:
    async with make(kind, path) as store:
        yield store
