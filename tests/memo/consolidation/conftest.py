"""Stores with a clock that moves only when the test moves it. A test that uses `store` runs on each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from memo import InMemoryStore, SQLiteStore
from memo.stores import BaseStore, StoreOptions
from memo.stores.filesystem import FilesystemStore
from tests.memo.consolidation.scenes import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "filesystem"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> AsyncIterator[BaseStore]:
    options = StoreOptions(clock=clock)
    made: BaseStore
    if request.param == "memory":
        made = InMemoryStore(options)
    elif request.param == "sqlite":
        made = SQLiteStore(tmp_path / "memo.db", options)
    else:
        made = FilesystemStore(tmp_path / "memo", options, watch=False, settle_s=0)
    async with made:
        yield made


@pytest.fixture
async def sqlite(tmp_path: Path, clock: Clock) -> AsyncIterator[SQLiteStore]:
    async with SQLiteStore(tmp_path / "memo.db", StoreOptions(clock=clock)) as made:
        yield made
