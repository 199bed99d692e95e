"""The conformance kit on the library's stores, and on the smallest possible provider."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from memo import capabilities_of
from memo.errors import Unsupported
from memo.testing import (
    check_change_feed,
    check_orchestration,
    check_provider,
    check_session_store,
    check_trace_store,
)
from tests.memo.conftest import MakeStore

pytestmark = pytest.mark.anyio


class OnlyReads:
    """A provider with the one method that every provider has."""

    async def read_memory_document(self, tenant: str, owner: str, scope: str, name: str) -> str | None:
        return "# Known\n" if (tenant, owner) == ("acme", "ann") else None


def part(make_store: MakeStore, factory: str) -> Callable[[], Any]:
    @asynccontextmanager
    async def make() -> AsyncIterator[Any]:
        async with make_store() as store:
            yield getattr(store, factory)

    return make


async def test_store_keeps_every_promise_of_a_provider(make_store: MakeStore) -> None:
    await check_provider(make_store, outage=lambda store: store.aclose())


# Specification: 001.3
async def test_store_keeps_every_promise_of_a_session_store(make_store: MakeStore) -> None:
    await check_session_store(make_store)


async def test_store_keeps_every_promise_of_a_trace_store(make_store: MakeStore) -> None:
    await check_trace_store(part(make_store, "session_trace_store"))


async def test_store_keeps_every_promise_of_orchestration_persistence(make_store: MakeStore) -> None:
    await check_orchestration(part(make_store, "orchestration_persistence"))


async def test_store_keeps_every_promise_of_a_change_feed(make_store: MakeStore) -> None:
    await check_change_feed(make_store)


# Specification: 001.20, 001.60
async def test_a_class_that_only_reads_is_a_provider() -> None:
    await check_provider(OnlyReads)
    capabilities = capabilities_of(OnlyReads())
    assert capabilities.read
    assert not capabilities.write
    assert len(capabilities.missing()) == 13


async def test_our_stores_have_every_capability(make_store: MakeStore) -> None:
    assert capabilities_of(make_store()).missing() == []


# Specification: 001.62
async def test_an_object_that_cannot_read_is_not_a_provider() -> None:
    with pytest.raises(Unsupported, match="cannot use object as a provider"):
        capabilities_of(object())
