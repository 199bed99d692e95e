"""Hibernation, pauses and options: a sandbox without a container keeps its files, and calls bring it back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest

import memo
from memo.documents import DocumentKey
from memo.ids import SessionRef
from sandboxd import failpoints
from sandboxd.errors import (
    Differs,
    EngineRefused,
    EngineUnavailable,
    Gone,
    Hibernated,
    InvalidRequest,
    LimitReached,
    NotReady,
    Paused,
    SandboxNotFound,
)
from sandboxd.models.sandbox import SandboxPatch
from sandboxd.runner.calls import Exec
from tests.world.world import HANG_S, World, managing, open_world, settings_in

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


async def update(world: World, **changes: Any) -> None:
    await world.manager.update(S1, SandboxPatch(**changes))


async def test_a_hibernated_sandbox_is_only_files_on_disk(world: World) -> None:
    await world.create("s1")
    view = await world.manager.hibernate(S1)
    assert (view.state, view.cause, view.container) == ("hibernated", "asked", None)
    assert world.table.containers == {}
    assert list(world.on_disk()) == ["workspaces"]
    assert (await world.manager.hibernate(S1)).resting_since == view.resting_since


async def test_calls_that_come_together_resume_a_sandbox_once(world: World) -> None:
    await world.create("s1")
    await run(world, "echo kept > /workspace/a")
    await world.manager.hibernate(S1)
    answers: list[str] = []

    async def call() -> None:
        answers.append(await run(world, "cat /workspace/a"))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(call)
    assert answers == ["kept\n"] * 10
    assert len(world.table.launched) == 2


async def test_a_resumed_sandbox_shows_the_memory_that_changed_while_it_slept(world: World) -> None:
    await world.create("s1")
    await world.manager.hibernate(S1)
    await world.memory.write(DocumentKey.of_session(S1, "NOTES.md"), "written while it slept\n")
    assert await run(world, "cat /workspace/memo/session/NOTES.md") == "written while it slept\n"


async def test_with_manual_resume_a_call_is_refused_with_the_next_step(world: World) -> None:
    await world.create("s1", resume="manual")
    for sleep, error in ((world.manager.hibernate, Hibernated), (world.manager.pause, Paused)):
        await sleep(S1)
        with pytest.raises(error, match=r"resume it with POST \.\.\./sandbox/resume"):
            await world.manager.call(S1)
        assert (await world.manager.resume(S1)).state == "ready"
        assert await run(world, "echo awake") == "awake\n"


async def test_a_create_brings_back_a_hibernated_or_paused_sandbox(world: World) -> None:
    await world.create("s1", resume="manual")
    await world.manager.hibernate(S1)
    assert (await world.create("s1")).created
    await world.manager.pause(S1)
    view = await world.create("s1")
    assert (view.state, view.created) == ("ready", False)


async def test_a_resume_that_fails_leaves_the_sandbox_asleep_and_the_next_call_tries_again(world: World) -> None:
    await world.create("s1")
    await run(world, "echo kept > /workspace/a")
    await world.manager.hibernate(S1)
    world.table.refuse_launches(EngineRefused("cannot launch: a test said so"))
    with pytest.raises(EngineRefused, match="a test said so"):
        await world.manager.call(S1)
    view = world.manager.get(S1)
    assert (view.state, view.cause) == ("hibernated", "engine")
    assert await run(world, "cat /workspace/a") == "kept\n"


async def test_a_sandbox_that_cannot_be_resumed_for_lack_of_room_stays_asleep(tmp_path: Path) -> None:
    async with open_world(tmp_path, max_sandboxes=1) as world:
        await world.create("s1")
        await world.manager.hibernate(S1)
        await world.create("s2")
        with pytest.raises(LimitReached):
            await world.manager.call(S1)
        assert world.manager.get(S1).state == "hibernated"
        await world.manager.hibernate(SessionRef.of("acme", "s2"))
        assert await run(world, "echo awake") == "awake\n"


async def test_a_call_in_flight_is_told_that_the_sandbox_hibernates(world: World) -> None:
    await world.create("s1")
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            with pytest.raises(Hibernated, match="its files are kept"):
                await run(world, "sleep 600")

        tasks.start_soon(call)
        await world.wait_busy()
        await world.manager.hibernate(S1)


async def test_a_paused_sandbox_continues_where_it_was(world: World) -> None:
    await world.create("s1")
    with await world.manager.call(S1) as runner:
        process = await runner.start_process(Exec("i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done"))
        await runner.read_process(process.id, wait_s=HANG_S)
    view = await world.manager.pause(S1)
    assert (view.state, view.cause) == ("paused", "asked")
    assert (await world.manager.pause(S1)).container == view.container
    with await world.manager.call(S1) as runner:  # resumes it
        (found,) = await runner.list_processes()
        assert (found.id, found.running) == (process.id, True)
        before = found.output_bytes
        while (await runner.read_process(process.id, before, wait_s=HANG_S)).next_offset <= before:
            pass
    assert world.running_container("s1") == view.container


async def test_a_pause_that_fails_leaves_the_sandbox_ready(world: World) -> None:
    await world.create("s1")
    world.table.leave()
    with pytest.raises(EngineUnavailable):
        await world.manager.pause(S1)
    world.table.come_back()
    assert await run(world, "echo awake") == "awake\n"


async def test_a_sandbox_that_was_paused_from_outside_is_not_resumed_by_a_call(world: World) -> None:
    await world.create("s1")
    world.table.freeze(world.running_container("s1"))
    await world.wait_for("s1", "paused")
    for act in (world.manager.call(S1), world.manager.resume(S1), world.create("s1")):
        with pytest.raises(Paused, match="paused from outside"):
            await act
    world.table.freeze(world.running_container("s1"), False)
    await world.wait_for("s1", "ready")


async def test_quick_pauses_and_resumes_end_in_the_state_that_was_asked_for_last(world: World) -> None:
    await world.create("s1")
    for _ in range(10):
        await world.manager.pause(S1)
        assert (await world.manager.resume(S1)).state == "ready"
        assert await run(world, "echo awake") == "awake\n"


@pytest.mark.parametrize("is_running", [True, False])
async def test_paused_and_hibernated_sandboxes_are_as_they_were_after_a_restart(world: World, is_running: bool) -> None:
    await world.create("s1", labels={"team": "search"}, idle_timeout_s=3600, resume="manual")
    await run(world, "echo kept > /workspace/a")
    sleep = world.manager.pause if is_running else world.manager.hibernate
    before = await sleep(S1)
    await world.stop()
    async with managing(world.table, settings_in(world.directory)) as manager:
        again = World(world.directory, world.table, manager)
        view = await again.wait_for("s1", before.state)
        assert view == before
        assert (await manager.resume(S1)).container == before.container or not is_running
        assert await run(again, "cat /workspace/a") == "kept\n"


async def test_neither_a_dead_nor_a_missing_sandbox_can_be_paused_or_resumed(world: World) -> None:
    for act in (world.manager.pause, world.manager.resume, world.manager.hibernate):
        with pytest.raises(SandboxNotFound):
            await act(S1)
    await world.create("s1")
    world.table.end(world.running_container("s1"), "oom")
    await world.wait_for("s1", "gone")
    for act in (world.manager.pause, world.manager.resume):
        with pytest.raises(Gone, match="its files are kept"):
            await act(S1)


async def test_a_sandbox_hibernates_after_its_own_idle_time(world: World) -> None:
    await world.create("s1")
    assert world.manager.get(S1).idle_timeout_s == 1800
    await update(world, idle_timeout_s=0.2)
    assert (await world.wait_for("s1", "hibernated")).cause == "idle"
    await update(world, idle_timeout_s=0)
    await run(world, "true")
    assert world.manager.get(S1).idle_timeout_s == 0
    await update(world, idle_timeout_s=None)
    assert world.manager.get(S1).idle_timeout_s == 1800


async def test_a_sandbox_hibernates_at_the_end_of_its_life_even_if_it_is_used(world: World) -> None:
    await world.create("s1", ttl_s=3600)
    with await world.manager.call(S1) as runner:
        await runner.start_process(Exec("sleep 600"))
    await update(world, ttl_s=0.2)
    asleep = await world.wait_for("s1", "hibernated")
    assert (asleep.cause, asleep.expires_at) == ("lifetime", None)
    await update(world, ttl_s=3600)
    await run(world, "true")
    expires_at = world.manager.get(S1).expires_at
    assert expires_at is not None
    assert 3000 < (expires_at - datetime.now(UTC)).total_seconds() <= 3600
    await update(world, ttl_s=None)
    assert world.manager.get(S1).expires_at is None


async def test_the_daemons_longest_life_bounds_that_of_every_sandbox(tmp_path: Path) -> None:
    async with open_world(tmp_path, max_lifetime_s=60) as world:
        for session, ttl_s in (("s1", None), ("s2", 3600), ("s3", 10)):
            view = await world.create(session, ttl_s=ttl_s)
            assert view.expires_at is not None
            lifetime_s = (view.expires_at - view.created_at).total_seconds()
            assert lifetime_s == pytest.approx(min(ttl_s or 60, 60), abs=5)


async def test_an_update_changes_only_what_it_names(world: World) -> None:
    await world.create("s1", labels={"team": "search"}, idle_timeout_s=100, resume="manual")
    await update(world, labels={"team": "ads", "tier": "1"})
    view = world.manager.get(S1)
    assert (view.labels, view.idle_timeout_s, view.resume) == ({"team": "ads", "tier": "1"}, 100, "manual")
    await update(world, resume="auto")
    view = world.manager.get(S1)
    assert (view.labels["tier"], view.idle_timeout_s, view.resume) == ("1", 100, "auto")


async def test_a_create_with_other_properties_names_the_differences_and_changes_nothing(world: World) -> None:
    first = await world.create("s1", env={"A": "1", "SAME": "x"})
    request: dict[str, Any] = {
        "env": {"A": "secret", "SAME": "x"},
        "limits": {"memory_mb": 256, "pids": 256},
        "image": "other",
    }
    with pytest.raises(Differs, match=r"another image and limits.memory_mb and env") as refused:
        await world.create("s1", **request)
    assert refused.value.differences == {
        "image": {"is": first.image, "requested": "other"},
        "limits.memory_mb": {"is": 512, "requested": 256},
        "env": {"names": ["A"]},
    }
    assert "secret" not in str(refused.value)
    assert world.manager.get(S1).container == first.container
    assert not (await world.create("s1", env={"A": "1", "SAME": "x"}, image=first.image)).created
    assert not (await world.create("s1", labels={"team": "ads"})).created
    assert world.manager.get(S1).labels == {"team": "ads"}


async def test_recreate_replaces_the_container_and_keeps_the_files(world: World) -> None:
    first = await world.create("s1", env={"A": "1"})
    await run(world, "echo kept > /workspace/a")
    second = await world.create("s1", env={"A": "2"}, limits={"memory_mb": 256}, recreate=True)
    assert second.created
    assert second.container != first.container
    assert second.limits["memory_mb"] == 256
    assert await run(world, "echo $A; cat /workspace/a") == "2\nkept\n"
    assert len(world.table.containers) == 1
    await world.manager.hibernate(S1)
    assert (await world.create("s1", env={}, recreate=True)).state == "ready"
    assert await run(world, "echo [$A]") == "[]\n"


async def test_a_recreate_that_cannot_work_changes_nothing(world: World) -> None:
    first = await world.create("s1")
    with pytest.raises(EngineRefused, match="no image missing"):
        await world.create("s1", image="missing", recreate=True)
    with pytest.raises(InvalidRequest, match="leave disk_mb out"):
        await world.create("s1", limits={"disk_mb": 2048}, recreate=True)
    assert world.manager.get(S1).container == first.container


async def test_a_call_during_a_recreate_is_told_to_try_again_or_waits(world: World) -> None:
    await world.create("s1")
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            with pytest.raises(NotReady, match="being replaced; try again"):
                await run(world, "sleep 600")
            assert await run(world, "echo again") == "again\n"

        tasks.start_soon(call)
        await world.wait_busy()
        await world.create("s1", recreate=True)


@pytest.mark.parametrize("point", ["hibernate.intent", "hibernate.drained", "hibernate.removed", "hibernate.rested"])
async def test_a_hibernation_that_fails_at_any_step_is_finished_and_keeps_the_files(world: World, point: str) -> None:
    await world.create("s1")
    await run(world, "echo kept > /workspace/a")
    failpoints.arm(f"{point}=error(EIO)")
    with pytest.raises(Exception, match="Input/output error"):
        await world.manager.hibernate(S1)
    failpoints.arm("")
    await world.manager.collect_garbage()
    with anyio.fail_after(HANG_S):
        while world.table.containers or set(world.on_disk()) != {"workspaces"}:
            await anyio.sleep(0.01)
    assert world.manager.get(S1).state == "hibernated"
    assert await run(world, "cat /workspace/a") == "kept\n"
