"""Stores that keep records, opened by name, for all tests of the turn contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from memo import InMemoryStore, SQLiteStore
from memo.stores.filesystem import FilesystemStore

STORES = ("memory", "sqlite", "filesystem")
DURABLE = ("sqlite", "filesystem")


def make(kind: str, path: Path) -> Any:
    if kind == "memory":
        return InMemoryStore()
    if kind == "sqlite":
        return SQLiteStore(path / "memo.db")
    return FilesystemStore(path / "files", watch=False)


@asynccontextmanager
async def opened(kind: str, path: Path) -> AsyncIterator[Any]:
    async with make(kind, path) as store:
        yield store
