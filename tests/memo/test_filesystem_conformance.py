"""The kit on the filesystem store, watched and unwatched."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from memo import capabilities_of
from memo.stores.filesystem import FilesystemStore
from memo.testing import (
    check_change_feed,
    check_orchestration,
    check_provider,
    check_session_store,
    check_trace_store,
)

pytestmark = pytest.mark.anyio

Make = Callable[[], FilesystemStore]


@pytest.fixture(params=[True, False], ids=["watched", "unwatched"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    numbers = count()
    return lambda: FilesystemStore(tmp_path / f"memo-{next(numbers)}", watch=request.param)


def part(make: Make, factory: str) -> Callable[[], Any]:
    @asynccontextmanager
    async def open_part() -> AsyncIterator[Any]:
        async with make() as store:
            yield getattr(store, factory)

    return open_part


async def test_a_directory_keeps_every_promise_of_a_provider(make: Make) -> None:
    await check_provider(make, outage=lambda store: store.aclose())


async def test_a_directory_keeps_every_promise_of_a_session_store(make: Make) -> None:
    await check_session_store(make)


async def test_a_directory_keeps_every_promise_of_a_trace_store(make: Make) -> None:
    await check_trace_store(part(make, "session_trace_store"))


async def test_a_directory_keeps_every_promise_of_orchestration_persistence(make: Make) -> None:
    await check_orchestration(part(make, "orchestration_persistence"))


async def test_a_directory_keeps_every_promise_of_a_change_feed(make: Make) -> None:
    await check_change_feed(make)


async def test_a_directory_has_every_capability(make: Make) -> None:
    assert capabilities_of(make()).missing() == []
