"""The stores under test: every test that uses `store` or `make_store` runs on each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path

import pytest

from memo import FilesystemStore, InMemoryStore, SQLiteStore
from memo.stores import BaseStore, StoreOptions

MakeStore = Callable[..., BaseStore]


@pytest.fixture(params=["memory", "sqlite", "filesystem"])
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> MakeStore:
    numbers = count()

    def make(options: StoreOptions | None = None) -> BaseStore:
        if request.param == "memory":
            return InMemoryStore(options)
        if request.param == "sqlite":
            return SQLiteStore(tmp_path / f"memo-{next(numbers)}.db", options)
        return FilesystemStore(tmp_path / f"memo-{next(numbers)}", options)

    return make


@pytest.fixture
async def store(make_store: MakeStore) -> AsyncIterator[BaseStore]:
    async with make_store() as opened:
        yield opened
