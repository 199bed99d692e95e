"""Snapshots over a fake engine: durable, within their quota, and either ready or gone whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import memo
from memo.ids import SessionRef, UserId
from sandboxd import failpoints
from sandboxd.errors import Conflict, HostFull, InvalidRequest, LimitReached, SandboxNotFound, SnapshotNotFound
from sandboxd.limits import Limits
from sandboxd.models.sandbox import SandboxRequest
from sandboxd.models.snapshot import SnapshotView
from sandboxd.runner.calls import Exec
from tests.world.world import ANN, HANG_S, World, managing, open_world, settings_in

pytestmark = pytest.mark.anyio

S1 = SessionRef.of("acme", "s1")


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with memo.open_store("memory://") as store, open_world(tmp_path, store=store) as world:
        yield world


async def run(world: World, command: str, session: str = "s1") -> str:
    with await world.manager.call(SessionRef.of("acme", session)) as runner:
        return (await runner.exec(Exec(command))).stdout.decode()


async def snapshot(world: World, name: str | None = None, request: str | None = None) -> SnapshotView:
    return await (await world.manager.take_snapshot(S1, name, request)).wait()


def files_of(world: World) -> list[str]:
    return sorted(path.name for path in world.manager.layout.snapshots.iterdir())


def events_of(world: World) -> list[Any]:
    return [event.fields["what"] for event in world.manager.events.recent() if event.kind == "snapshot"]


async def test_a_sandbox_begins_with_the_files_of_a_snapshot(world: World) -> None:
    await world.create("s1")
    await run(world, "mkdir -p d && echo kept > d/file && ln -s d/file link && echo '#!/bin/sh' > run && chmod 755 run")
    taken = await snapshot(world, "before the test")
    await run(world, "echo changed > d/file")
    assert (taken.name, taken.session, taken.user) == ("before the test", "s1", ANN)
    assert taken.size_bytes > 0
    view = await world.create("s2", from_snapshot=taken.id)
    assert (view.from_snapshot, view.from_pool, view.state) == (taken.id, False, "ready")
    assert await run(world, "cat d/file link; ./run; ls", "s2") == "kept\nkept\nd\nlink\nmemo\nrun\n"
    assert await run(world, "cat d/file") == "changed\n"
    assert world.manager.snapshots.of_session(S1) == [taken]
    assert events_of(world) == ["created"]


async def test_a_snapshot_survives_its_sandbox_and_a_restart(world: World) -> None:
    await world.create("s1")
    await run(world, "echo kept > file")
    taken = await snapshot(world)
    await world.manager.destroy(S1)
    store = world.memory.client.store
    await world.stop()
    async with managing(world.table, settings_in(world.directory), store) as manager:
        again = World(world.directory, world.table, manager)
        assert manager.snapshots.of_session(S1) == [taken]
        await again.create("s1", from_snapshot=taken.id)
        assert await run(again, "cat file") == "kept\n"
        await manager.snapshots.remove(S1, taken.id)
        assert (manager.snapshots.of_session(S1), files_of(again)) == ([], [])
        assert await run(again, "cat file") == "kept\n"


async def test_a_repeated_create_returns_the_sandbox_and_another_snapshot_is_a_conflict(world: World) -> None:
    await world.create("s1")
    first, second = await snapshot(world), await snapshot(world)
    made = await world.create("s2", from_snapshot=first.id)
    again = await world.create("s2", from_snapshot=first.id)
    assert (again.container, again.created) == (made.container, False)
    assert (await world.create("s2")).container == made.container
    with pytest.raises(Conflict, match="the session has one; remove it first, or set recreate"):
        await world.create("s2", from_snapshot=second.id)
    with pytest.raises(Conflict, match="the session has one"):
        await world.create("s1", from_snapshot=first.id)


async def test_recreate_replaces_the_files_with_those_of_the_snapshot(world: World) -> None:
    await world.create("s1")
    await run(world, "echo old > file")
    taken = await snapshot(world)
    await run(world, "echo new > file; touch more")
    view = await world.create("s1", from_snapshot=taken.id, recreate=True)
    assert (view.created, view.from_snapshot) == (True, taken.id)
    assert await run(world, "ls; cat file") == "file\nmemo\nold\n"


async def test_a_recreate_from_a_snapshot_that_does_not_exist_removes_nothing(world: World) -> None:
    await world.create("s1")
    await run(world, "echo kept > file")
    with pytest.raises(SnapshotNotFound):
        await world.create("s1", from_snapshot="snap-0", recreate=True)
    assert await run(world, "cat file") == "kept\n"


async def test_another_tenant_user_or_session_does_not_find_a_snapshot(world: World) -> None:
    await world.create("s1")
    taken = await snapshot(world)
    with pytest.raises(SnapshotNotFound):
        await world.create("s2", tenant="other", from_snapshot=taken.id)
    with pytest.raises(SnapshotNotFound):
        await world.create("s2", "eve", from_snapshot=taken.id)
    snapshots = world.manager.snapshots
    for ref in (SessionRef.of("other", "s1"), SessionRef.of("acme", "s2")):
        assert snapshots.of_session(ref) == []
        with pytest.raises(SnapshotNotFound):
            snapshots.get(ref, taken.id)
        with pytest.raises(SnapshotNotFound):
            await snapshots.remove(ref, taken.id)
    assert snapshots.get(S1, taken.id) == taken


async def test_the_size_of_a_workspace_is_the_snapshots(world: World) -> None:
    await world.create("s1", limits=Limits(disk_mb=64))
    taken = await snapshot(world)
    with pytest.raises(InvalidRequest, match="its snapshot has a size of 64 MB; leave disk_mb out"):
        await world.create("s2", from_snapshot=taken.id, limits=Limits(disk_mb=65))
    view = await world.create("s2", from_snapshot=taken.id, limits=Limits(memory_mb=300))
    assert (view.limits["disk_mb"], view.limits["memory_mb"]) == (64, 300)


async def test_the_quota_of_a_session_names_the_limit_and_what_to_do(tmp_path: Path) -> None:
    async with open_world(tmp_path, max_snapshots=2) as world:
        await world.create("s1")
        first, _ = await snapshot(world), await snapshot(world)
        with pytest.raises(LimitReached, match="has 2, and max_snapshots is 2; remove one"):
            await snapshot(world)
        await world.manager.snapshots.remove(S1, first.id)
        await snapshot(world)
        assert len(files_of(world)) == 2


async def test_concurrent_snapshots_do_not_exceed_the_quota(tmp_path: Path) -> None:
    async with open_world(tmp_path, max_snapshots=3) as world:
        await world.create("s1")
        outcomes: list[str] = []

        async def take() -> None:
            try:
                outcomes.append((await snapshot(world)).id)
            except LimitReached:
                outcomes.append("refused")

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(take)
        assert outcomes.count("refused") == 2
        assert len(files_of(world)) == 3


async def test_a_full_disk_refuses_a_snapshot_before_anything_is_written(world: World) -> None:
    await world.create("s1")
    reserve = world.manager.layout.reserve
    while reserve.spend():
        pass
    reserve.fill = lambda *, partly=False: False  # type: ignore[method-assign]  # the disk stays full
    with pytest.raises(HostFull, match="disk of the data directory is full"):
        await snapshot(world)
    assert files_of(world) == []


@pytest.mark.parametrize("point", ["snapshot.intent", "snapshot.ready"])
async def test_a_snapshot_that_fails_leaves_nothing(world: World, point: str) -> None:
    await world.create("s1")
    failpoints.arm(f"{point}=error(EIO)")
    with pytest.raises(Exception, match="cannot take this snapshot"):
        await snapshot(world)
    assert (files_of(world), world.manager.snapshots.of_session(S1)) == ([], [])
    failpoints.arm("")
    await snapshot(world)


async def test_a_removal_that_fails_can_be_repeated(world: World) -> None:
    await world.create("s1")
    taken = await snapshot(world)
    failpoints.arm("snapshot.removing=error(EIO)")
    with pytest.raises(Exception, match="cannot remove snapshot"):
        await world.manager.snapshots.remove(S1, taken.id)
    failpoints.arm("")
    await world.manager.snapshots.remove(S1, taken.id)
    assert files_of(world) == []
    assert events_of(world) == ["created", "removed"]


async def test_a_repeated_request_returns_the_same_snapshot(world: World) -> None:
    await world.create("s1")
    async with anyio.create_task_group() as tasks:
        jobs = [await world.manager.take_snapshot(S1, "n", "request-1") for _ in range(2)]
        tasks.cancel_scope.cancel()
    taken = {(await job.wait()).id for job in jobs} | {(await snapshot(world, "n", "request-1")).id}
    assert len(taken) == 1
    assert (await snapshot(world, "n", "request-2")).id not in taken


async def test_a_snapshot_goes_on_when_its_caller_leaves(world: World) -> None:
    await world.create("s1")
    failpoints.arm("snapshot.intent=delay(200)")
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as callers:
            callers.start_soon(snapshot, world)
            while not world.manager.snapshots.under_way:
                await anyio.sleep(0.01)
            callers.cancel_scope.cancel()
        while not world.manager.snapshots.of_session(S1):
            await anyio.sleep(0.01)


async def test_a_session_without_a_sandbox_has_nothing_to_copy(world: World) -> None:
    with pytest.raises(SandboxNotFound):
        await world.manager.take_snapshot(S1, None)


async def test_a_hibernated_sandbox_is_woken_for_the_copy_of_a_plain_directory(world: World) -> None:
    await world.create("s1")
    await run(world, "echo kept > file")
    await world.manager.hibernate(S1)
    taken = await snapshot(world)
    await world.create("s2", from_snapshot=taken.id)
    assert await run(world, "cat file", "s2") == "kept\n"


async def test_what_a_crash_left_is_removed_and_files_without_a_record_are_reported(world: World) -> None:
    await world.create("s1")
    taken = await snapshot(world)
    directory = world.manager.layout.snapshots
    await world.stop()
    (directory / ".new-snap-1").write_text("half")
    (directory / "snap-1.image").write_text("not ours to remove")
    async with managing(world.table, settings_in(world.directory)) as manager:
        assert manager.snapshots.of_session(S1) == [taken]
        report = await manager.collect_garbage()
        assert report.unclaimed_snapshots == ["snap-1.image"]
        assert sorted(path.name for path in directory.iterdir()) == sorted(["snap-1.image", f"{taken.id}.tar"])


async def test_a_create_from_a_snapshot_that_fails_leaves_nothing(world: World) -> None:
    await world.create("s1")
    taken = await snapshot(world)
    path = next(world.manager.layout.snapshots.iterdir())
    path.write_bytes(b"not an archive" * 1000)
    with pytest.raises(Exception, match="cannot"):
        await world.manager.ensure_sandbox(
            SessionRef.of("acme", "s2"), SandboxRequest(user=UserId(ANN), from_snapshot=taken.id)
        )
    assert [view.session for view in world.manager.of_tenant(S1.tenant)] == ["s1"]
    assert len(world.running()) == 1
