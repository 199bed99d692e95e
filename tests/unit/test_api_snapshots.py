"""Snapshots and forks on the wire: statuses, codes, events, and requests that are repeated."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import memo
from memo.errors import InvalidKey
from sandboxd.client import AsyncClient, AsyncSandbox, SnapshotProgress, SnapshotView
from sandboxd.client.request import json_request
from sandboxd.errors import Conflict, InvalidRequest, LimitReached, SandboxNotFound, SnapshotNotFound
from tests.world.serving import ServedWorld as World
from tests.world.serving import serving

pytestmark = pytest.mark.anyio


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with memo.open_store("memory://") as store, serving(tmp_path, store=store, max_snapshots=3) as world:
        yield world


@pytest.fixture
async def client(world: World) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(world.socket, tenant="acme") as client:
        await client.ensure_sandbox("s1", "ann")
        await client.exec("s1", "echo kept > file")
        yield client


async def test_a_snapshot_is_taken_found_used_and_removed(client: AsyncClient) -> None:
    taken = await client.take_snapshot("s1", "first")
    assert (taken.name, taken.session) == ("first", "s1")
    assert await client.list_snapshots("s1") == [taken] == [await client.get_snapshot("s1", taken.id)]
    view = await client.ensure_sandbox("s2", "ann", from_snapshot=taken.id)
    assert (view.from_snapshot, view.created) == (taken.id, True)
    assert (await client.exec("s2", "cat file")).stdout == "kept\n"
    await client.remove_snapshot("s1", taken.id)
    with pytest.raises(SnapshotNotFound):
        await client.get_snapshot("s1", taken.id)


async def test_events_tell_the_progress_and_end_with_the_snapshot(client: AsyncClient) -> None:
    seen = [item async for item in client.take_snapshot_stream("s1", "streamed")]
    assert isinstance(seen[-1], SnapshotView)
    assert all(isinstance(item, SnapshotProgress) for item in seen[:-1])


async def test_a_failure_while_events_are_sent_is_an_event_too(client: AsyncClient) -> None:
    for _ in range(3):
        await client.take_snapshot("s1")
    with pytest.raises(LimitReached, match="max_snapshots is 3"):
        _ = [item async for item in client.take_snapshot_stream("s1")]


async def test_a_repeated_key_returns_the_same_snapshot_and_the_same_forks(client: AsyncClient) -> None:
    first = await client.take_snapshot("s1", idempotency_key="k1")
    assert await client.take_snapshot("s1", idempotency_key="k1") == first
    made = await client.fork("s1", count=2, idempotency_key="k2")
    again = await client.fork("s1", count=2, idempotency_key="k2")
    assert [view.session for view in again.items] == [view.session for view in made.items]
    assert len(await client.list_sandboxes()) == 3


async def test_a_session_without_a_sandbox_cannot_be_copied(client: AsyncClient) -> None:
    with pytest.raises(SandboxNotFound):
        await client.take_snapshot("s9")
    with pytest.raises(SandboxNotFound):
        await client.fork("s9", "s10")
    assert await client.list_snapshots("s9") == []


async def test_an_unknown_snapshot_creates_neither_a_sandbox_nor_a_session(client: AsyncClient) -> None:
    with pytest.raises(SnapshotNotFound):
        await client.ensure_sandbox("s2", "ann", from_snapshot="snap-0")
    assert {session.session for session in await client.list_sessions()} == {"s1"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"session": "a", "count": 1},
        {"sessions": []},
        {"sessions": ["a", "a"]},
        {"count": 0},
        {"count": 101},
        {"session": "../x"},
        {"session": "a", "memory": "all"},
    ],
)
async def test_an_unclear_request_is_refused(client: AsyncClient, body: dict[str, Any]) -> None:
    with pytest.raises((InvalidRequest, InvalidKey)):
        await client._send(json_request("POST", "/v1/tenants/acme/sessions/s1/fork", body))


async def test_a_fork_to_an_existing_sandbox_is_a_conflict(client: AsyncClient) -> None:
    await client.ensure_sandbox("s2", "ann")
    with pytest.raises(Conflict, match="it has a sandbox"):
        await client.fork("s1", ["s3", "s2"])


async def test_a_sandbox_object_takes_snapshots_and_forks(world: World, client: AsyncClient) -> None:
    sandbox = await AsyncSandbox.connect("s1", client=client)
    taken = await sandbox.snapshot("mine")
    assert await sandbox.snapshots() == [taken]
    one, two = await sandbox.fork(["s2", "s3"])
    assert (one.session, two.view.parent) == ("s2", "s1")
    assert (await two.commands.run("cat file")).stdout == "kept\n"
    made = await AsyncSandbox.create("s4", user="ann", from_snapshot=taken.id, client=client)
    assert json.loads(made.view.model_dump_json())["from_snapshot"] == taken.id
