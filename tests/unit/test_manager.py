"""The manager over a fake engine: one sandbox for each session, whatever fails, dies, restarts or runs concurrently."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

import memo
from memo.documents import DocumentKey
from memo.ids import SessionRef, UserId, UserRef
from sandboxd import failpoints
from sandboxd.engine.protocol import LABEL_INSTANCE, LABEL_SANDBOX, ContainerSpec
from sandboxd.errors import (
    Conflict,
    EngineRefused,
    EngineUnavailable,
    Gone,
    HostFull,
    LimitReached,
    NotReady,
    Paused,
    SandboxdError,
    SandboxNotFound,
)
from sandboxd.image import default_image
from sandboxd.limits import Limits
from sandboxd.models.sandbox import SandboxRequest
from sandboxd.runner.calls import Exec
from tests.world.fake_engine import NAME, FakeEngine
from tests.world.world import ANN, HANG_S, World, managing, open_world, settings_in

pytestmark = pytest.mark.anyio

SAME = object()
S1 = SessionRef.of("acme", "s1")
CREATE_POINTS = (
    *("create.intent", "create.workspace", "create.mirror", "create.snapshot", "create.listener"),
    *("create.launched", "create.recorded", "create.hello"),
)


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


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that has no event."""
    with anyio.fail_after(HANG_S):
        while not condition():
            await anyio.sleep(0.01)


def states_of(world: World, session: str = "s1") -> list[object]:
    events = world.manager.events.recent()
    return [event.fields["state"] for event in events if event.kind == "sandbox" and event.fields["session"] == session]


@asynccontextmanager
async def restarted(
    world: World, *, store: object = SAME, before: Callable[[], None] = lambda: None, **settings: Any
) -> AsyncIterator[World]:
    """End the world's manager and start another one over the same data directory and containers."""
    if store is SAME:
        store = None if world.manager.memory is None else world.memory.client.store
    await world.stop()
    before()
    async with managing(world.table, settings_in(world.directory, **settings), store) as manager:
        yield World(world.directory, world.table, manager)


def orphan(instance: str, sandbox: str) -> ContainerSpec:
    labels = {LABEL_INSTANCE: instance, LABEL_SANDBOX: sandbox}
    return ContainerSpec(f"c-{sandbox}", default_image(NAME), ("sleep", "600"), 1, 1, labels, (), Limits())


async def test_creating_twice_returns_the_same_sandbox(world: World) -> None:
    first = await world.manager.ensure_sandbox(S1, SandboxRequest(user=ANN))
    again = await world.manager.ensure_sandbox(S1, SandboxRequest(user=ANN))
    assert (first.state, first.created) == ("ready", True)
    assert again == first.model_copy(update={"created": False})
    assert len(world.table.launched) == 1


async def test_concurrent_creates_share_one_container(world: World) -> None:
    answers: list[tuple[str | None, bool]] = []

    async def create() -> None:
        view = await world.manager.ensure_sandbox(S1, SandboxRequest(user=ANN))
        answers.append((view.container, view.created))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(create)
    assert len(world.table.launched) == len(world.table.containers) == 1
    assert len({container for container, _ in answers}) == 1
    assert [is_new for _, is_new in answers].count(True) == 1


async def test_a_session_is_not_given_to_another_user(world: World) -> None:
    await world.create("s1")
    with pytest.raises(Conflict, match="belongs to another user"):
        await world.create("s1", "eve")
    assert len(world.table.launched) == 1
    assert world.manager.get(S1).user == ANN


async def test_tenants_see_only_their_own_sandboxes(world: World) -> None:
    await world.create("s1")
    await world.create("s1", tenant="other")
    assert [view.tenant for view in world.manager.of_tenant(S1.tenant)] == ["acme"]
    await world.manager.destroy(S1)
    assert world.manager.of_tenant(S1.tenant) == []
    with pytest.raises(SandboxNotFound):
        world.manager.get(S1)
    assert world.manager.get(SessionRef.of("other", "s1")).state == "ready"


async def test_a_refused_create_writes_nothing(tmp_path: Path) -> None:
    async with open_world(tmp_path, max_sandboxes=1) as world:
        await world.create("s1")
        before = (world.registered(), world.on_disk())
        with pytest.raises(LimitReached, match="1 are running, which is the limit"):
            await world.create("s2")
        assert (world.registered(), world.on_disk()) == before
        assert len(world.table.launched) == 1
        world.table.end(world.running_container("s1"))
        await world.wait_for("s1", "gone")
        await world.create("s2")  # one without a container does not count
        with pytest.raises(LimitReached):
            await world.create("s1")


async def test_a_full_disk_refuses_a_create_before_anything_is_written(world: World) -> None:
    reserve = world.manager.layout.reserve
    while reserve.spend():
        pass
    directory = world.manager.layout.data / "reserve"
    directory.rmdir()
    directory.touch()  # so that it cannot be filled again
    with pytest.raises(HostFull, match="disk of the data directory is full"):
        await world.create("s1")
    assert world.is_empty()


@pytest.mark.parametrize("point", CREATE_POINTS)
async def test_a_create_that_fails_at_any_step_leaves_nothing(world: World, point: str) -> None:
    failpoints.arm(f"{point}=error(EIO)")
    with pytest.raises(SandboxdError, match="cannot"):
        await world.create("s1")
    assert world.is_empty()
    failpoints.arm("")
    assert (await world.create("s1")).state == "ready"


@pytest.mark.parametrize("point", CREATE_POINTS)
async def test_a_restart_that_fails_at_any_step_keeps_the_files(world: World, point: str) -> None:
    await world.create("s1")
    await run(world, "echo kept > /workspace/a")
    world.table.end(world.running_container("s1"))
    await world.wait_for("s1", "gone")
    failpoints.arm(f"{point}=error(EIO)")
    with pytest.raises(SandboxdError, match="cannot"):
        await world.create("s1")
    assert (world.manager.get(S1).state, world.table.containers) == ("hibernated", {})
    failpoints.arm("")
    await world.create("s1")
    assert await run(world, "cat /workspace/a") == "kept\n"


async def test_a_launch_that_the_engine_refuses_leaves_nothing(world: World) -> None:
    world.table.refuse_launches(EngineRefused("cannot launch: there is no such image"))
    with pytest.raises(EngineRefused, match="no such image"):
        await world.create("s1")
    assert world.is_empty()
    assert (await world.create("s1")).state == "ready"


async def test_a_container_that_does_not_start_in_time_leaves_nothing(tmp_path: Path) -> None:
    async with open_world(tmp_path, start_timeout_s=0.2) as world:
        world.table.gate = anyio.Event()
        with pytest.raises(EngineUnavailable, match=r"its container was not ready within 0\.2 s"):
            await world.create("s1")
        assert world.is_empty()


async def test_a_container_that_dies_at_its_start_leaves_nothing(world: World) -> None:
    world.table.gate = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def create() -> None:
            with pytest.raises(EngineRefused, match=r"its container died at start \(oom"):
                await world.create("s1")

        tasks.start_soon(create)
        await until(lambda: world.table.containers)
        world.table.end(next(iter(world.table.containers)), "oom")
        await next(iter(world.table.containers.values())).ended.wait()
        world.table.gate.set()
    assert world.is_empty()


async def test_a_dead_container_is_reported_with_its_cause(world: World) -> None:
    await world.create("s1")
    world.table.end(world.running_container("s1"), "oom")
    view = await world.wait_for("s1", "gone")
    assert (view.cause, view.container) == ("oom", None)
    for use in (world.manager.call, world.manager.stats):
        with pytest.raises(Gone, match=r"its container is dead \(oom\); its files are kept") as gone:
            await use(S1)
        assert gone.value.cause == "oom"
    await until(lambda: not world.table.containers)


async def test_calls_in_flight_fail_when_the_container_dies(world: World) -> None:
    await world.create("s1")
    async with anyio.create_task_group() as tasks:

        async def call() -> None:
            # Which of the two it is depends on what is noticed first: the death, or the end of the connection.
            with pytest.raises((Gone, NotReady), match=r"the container died|the runner is gone"):
                await run(world, "touch /workspace/begun; sleep 60")

        tasks.start_soon(call)
        await until(lambda: (world.workspace("s1") / "begun").exists())
        world.table.end(world.running_container("s1"))


async def test_the_next_create_starts_a_dead_sandbox_again_with_its_files(world: World) -> None:
    first = await world.create("s1")
    await run(world, "echo kept > /workspace/a")
    world.table.end(world.running_container("s1"))
    await world.wait_for("s1", "gone")
    second = await world.manager.ensure_sandbox(S1, SandboxRequest(user=ANN))
    assert (second.state, second.cause, second.created) == ("ready", None, True)
    assert second.container != first.container
    assert await run(world, "cat /workspace/a") == "kept\n"
    assert len(world.table.containers) == 1


async def test_a_destroyed_sandbox_leaves_nothing_and_is_not_found_afterwards(world: World) -> None:
    await world.create("s1")
    await world.manager.destroy(S1)
    assert world.is_empty()
    with pytest.raises(SandboxNotFound, match="create it first"):
        await world.manager.destroy(S1)
    assert states_of(world) == ["ready", "destroying", "removed"]


async def test_destroy_lets_a_short_call_finish_and_ends_a_long_one(world: World) -> None:
    await world.create("s1")
    ended: dict[str, str] = {}

    async def call(name: str, command: str) -> None:
        try:
            ended[name] = await run(world, f"touch /workspace/{name}; {command}")
        except Gone as gone:
            ended[name] = str(gone)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, "short", "sleep 0.1; echo done")
        tasks.start_soon(call, "long", "sleep 60")
        workspace = world.workspace("s1")
        await until(lambda: {"short", "long"} <= {path.name for path in workspace.iterdir()})
        await world.manager.destroy(S1)
    assert ended == {"short": "done\n", "long": "cannot finish this call: the sandbox was destroyed"}
    assert world.is_empty()


async def test_destroy_cancels_a_create_under_way(world: World) -> None:
    world.table.gate = anyio.Event()
    async with anyio.create_task_group() as tasks:

        async def create() -> None:
            with pytest.raises(NotReady, match="it was destroyed in the meantime"):
                await world.create("s1")

        tasks.start_soon(create)
        await until(lambda: world.table.containers)
        await world.manager.destroy(S1)
    assert world.is_empty()


@pytest.mark.parametrize("point", ["destroy.intent", "destroy.drained", "destroy.removed", "destroy.workspace"])
async def test_a_destroy_that_failed_is_finished_by_the_next_one(world: World, point: str) -> None:
    await world.create("s1")
    failpoints.arm(f"{point}=error(EIO)")
    with pytest.raises(SandboxdError, match="cannot"):
        await world.manager.destroy(S1)
    failpoints.arm("")
    await world.manager.destroy(S1)
    assert world.is_empty()


async def test_a_create_after_a_failed_destroy_starts_afresh(world: World) -> None:
    await world.create("s1")
    await run(world, "echo old > /workspace/a")
    failpoints.arm("destroy.drained=error(EIO)")
    with pytest.raises(SandboxdError):
        await world.manager.destroy(S1)
    failpoints.arm("")
    assert (await world.create("s1")).state == "ready"
    assert await run(world, "ls /workspace") == "memo\n"
    assert len(world.table.containers) == len(world.registered()) == 1


async def test_a_warm_sandbox_is_claimed_once_and_the_pool_is_refilled(tmp_path: Path) -> None:
    async with memo.open_store("memory://") as store, open_world(tmp_path, store=store, pool=2) as world:
        await until(lambda: world.manager.pool.ready == 2)
        warm = set(world.table.containers)
        views = []
        async with anyio.create_task_group() as tasks:

            async def create(session: str) -> None:
                views.append(await world.create(session, env={"WHO": session}))

            for session in ("s1", "s2"):
                tasks.start_soon(create, session)
        assert {view.container for view in views} == warm
        assert all(view.from_pool for view in views)
        assert await run(world, "echo $WHO") == "s1\n"
        await until(lambda: world.manager.pool.ready == 2)
        assert len(world.table.containers) == 4
        assert (world.manager.pool.hits, world.manager.pool.misses, world.manager.pool.refills) == (2, 0, 4)


async def test_a_shape_that_is_not_warm_is_launched_on_request(tmp_path: Path) -> None:
    async with open_world(tmp_path, pool=1) as world:
        await until(lambda: world.manager.pool.ready == 1)
        view = await world.create("s1", limits=Limits(memory_mb=1024))
        assert (view.from_pool, view.limits["memory_mb"]) == (False, 1024)
        assert world.table.launched[-1].limits == Limits(**view.limits)


async def test_a_warm_sandbox_that_fails_to_start_leaves_nothing_and_blocks_no_create(tmp_path: Path) -> None:
    async with open_world(tmp_path, pool=1, pool_max=1) as world:
        world.table.refuse_launches(EngineRefused("cannot launch: no room"))
        await until(lambda: len(world.table.launched) == 1)
        assert (await world.create("s1")).from_pool is False
        await until(lambda: world.manager.pool.ready == 1)
        assert len(world.table.containers) == len(world.registered()) == 2


async def test_a_warm_sandbox_that_died_is_never_handed_out(tmp_path: Path) -> None:
    async with open_world(tmp_path, pool=1, pool_max=1) as world:
        await until(lambda: world.manager.pool.ready == 1)
        (warm,) = world.table.containers
        world.table.end(warm)
        view = await world.create("s1")
        assert (view.state, view.container == warm) == ("ready", False)
        assert await run(world, "echo alive") == "alive\n"
        await until(lambda: warm not in world.table.containers)


@pytest.mark.parametrize("point", ["claim.intent", "claim.mirror", "claim.configured"])
async def test_a_claim_that_fails_leaves_nothing_of_its_sandbox(tmp_path: Path, point: str) -> None:
    async with memo.open_store("memory://") as store, open_world(tmp_path, store=store, pool=1, pool_max=1) as world:
        await until(lambda: world.manager.pool.ready == 1)
        (warm,) = world.table.containers
        failpoints.arm(f"{point}=error(EIO)")
        with pytest.raises(SandboxdError, match="cannot"):
            await world.create("s1")
        failpoints.arm("")
        assert warm not in world.table.containers
        with pytest.raises(SandboxNotFound):
            world.manager.get(S1)
        assert (await world.create("s1")).state == "ready"


async def test_sandboxes_keep_working_while_the_engine_is_unreachable(world: World) -> None:
    await world.create("s1")
    world.table.leave()
    assert await run(world, "echo still here") == "still here\n"
    for act in (world.create("s2"), world.manager.stats(S1), world.manager.destroy(S1)):
        with pytest.raises(EngineUnavailable):
            await act
    world.table.come_back()
    await until(world.is_empty)  # the destroy finishes without another request
    assert (await world.create("s2")).state == "ready"


async def test_a_death_during_an_engine_outage_is_found_afterwards(world: World) -> None:
    await world.create("s1")
    container = world.running_container("s1")
    world.table.leave()
    world.table.end(container, "oom")
    await world.table.containers[container].ended.wait()
    world.table.come_back()
    assert (await world.wait_for("s1", "gone")).cause == "oom"


async def test_the_pool_is_filled_once_the_engine_is_back(tmp_path: Path) -> None:
    async with open_world(tmp_path, pool=1) as world:
        await until(lambda: world.manager.pool.ready == 1)
        (warm,) = world.table.containers
        world.table.leave()
        world.table.end(warm)
        await world.table.containers[warm].ended.wait()
        world.table.come_back()
        await until(lambda: world.manager.pool.ready == 1 and warm not in world.table.containers)


async def test_a_restarted_daemon_adopts_running_containers(world: World) -> None:
    before = await world.create("s1", env={"GREETING": "hello"})
    with await world.manager.call(S1) as runner:
        process = await runner.start_process(Exec("sleep 600"))
    async with restarted(world) as again:
        view = await again.wait_for("s1", "ready")
        assert (view.container, view.created_at) == (before.container, before.created_at)
        assert await run(again, "echo $GREETING") == "hello\n"
        with await again.manager.call(S1) as runner:
            assert [(found.id, found.running) for found in await runner.list_processes()] == [(process.id, True)]
        assert len(again.table.launched) == 1


async def test_a_sandbox_that_is_being_adopted_is_not_reported_ready(world: World) -> None:
    await world.create("s1")
    async with restarted(world) as again:
        with pytest.raises(NotReady, match="being adopted"):
            await again.manager.call(S1)
        assert (again.manager.get(S1).state, again.manager.states["ready"]) == ("starting", 0)
        await again.wait_for("s1", "ready")
        await again.manager.call(S1)


async def test_a_restarted_daemon_shows_what_was_written_while_it_was_down(world: World) -> None:
    await world.create("s1")
    key = DocumentKey.of("acme", "s1", "session", "NOTES.md")
    store = world.memory.client.store
    async with restarted(world, store=None):
        await store.write_document(key, "written meanwhile")
    async with restarted(world, store=store) as again:
        await again.wait_for("s1", "ready")
        assert await run(again, "cat /workspace/memo/session/NOTES.md") == "written meanwhile"


async def test_a_restarted_daemon_finds_what_died_while_it_was_down(world: World) -> None:
    await world.create("s1")
    await run(world, "echo kept > /workspace/a")
    container = world.running_container("s1")
    async with restarted(world, before=lambda: world.table.end(container, "oom")) as again:
        assert (await again.wait_for("s1", "gone")).cause == "oom"
        await again.create("s1")
        assert await run(again, "cat /workspace/a") == "kept\n"


async def test_a_restarted_daemon_keeps_or_retires_the_warm_sandboxes(tmp_path: Path) -> None:
    async with open_world(tmp_path, pool=1) as world:
        await until(lambda: world.manager.pool.ready == 1)
        (warm,) = world.table.containers
        async with restarted(world, pool=1) as again:
            await until(lambda: again.manager.pool.ready == 1)
            assert list(again.table.containers) == [warm]
            assert (await again.create("s1")).container == warm
        async with restarted(world, pool=0) as last:
            await last.wait_for("s1", "ready")
            await until(lambda: list(last.table.containers) == [warm])


async def test_only_what_belongs_to_no_sandbox_is_collected_as_garbage(world: World) -> None:
    kept = await world.create("s1")
    engine, layout = FakeEngine(world.table), world.manager.layout
    mine = await engine.launch(orphan(layout.instance(), "lost"))
    theirs = await engine.launch(orphan("another-daemon", "theirs"))
    layout.make("stray")
    (layout.workspaces / "unclaimed").mkdir()
    report = await world.manager.collect_garbage()
    assert (report.containers, report.directories, report.sandboxes) == (1, 1, 0)
    assert report.unclaimed_workspaces == ["unclaimed"]
    assert set(world.table.containers) == {kept.container, theirs.id}
    assert mine.id not in world.table.containers
    assert world.on_disk()["run"] == list(world.registered())
    assert await run(world, "echo alive") == "alive\n"
    assert (layout.workspaces / "unclaimed").is_dir()


async def test_a_pause_from_outside_is_reported_and_so_is_its_end(world: World) -> None:
    await world.create("s1")
    container = world.running_container("s1")
    world.table.freeze(container)
    await world.wait_for("s1", "paused")
    for act in (world.create("s1"), world.manager.stats(S1)):
        with pytest.raises(Paused, match="paused from outside"):
            await act
    with pytest.raises(Paused):
        await world.manager.call(S1)
    world.table.freeze(container, False)
    await world.wait_for("s1", "ready")
    assert await run(world, "echo awake") == "awake\n"
    assert states_of(world) == ["ready", "paused", "ready"]


async def test_an_idle_sandbox_hibernates_and_the_next_call_resumes_it_with_its_files(tmp_path: Path) -> None:
    async with open_world(tmp_path, idle_timeout_s=0.3) as world:
        first = await world.create("s1")
        await run(world, "echo kept > /workspace/a")
        asleep = await world.wait_for("s1", "hibernated")
        assert (asleep.cause, asleep.container) == ("idle", None)
        assert asleep.resting_since is not None
        assert await run(world, "cat /workspace/a") == "kept\n"
        assert world.manager.get(S1).container not in (None, first.container)


async def test_a_running_process_keeps_a_sandbox_from_being_idle(tmp_path: Path) -> None:
    async with open_world(tmp_path, idle_timeout_s=0.2) as world:
        await world.create("s1")
        with await world.manager.call(S1) as runner:
            process = await runner.start_process(Exec("sleep 600"))
        await anyio.sleep(0.6)
        assert world.manager.get(S1).state == "ready"
        with await world.manager.call(S1) as runner:
            await runner.kill_process(process.id)
        assert (await world.wait_for("s1", "hibernated")).cause == "idle"


async def test_every_state_is_announced_and_counted(world: World) -> None:
    await world.create("s1")
    await world.create("s2")
    assert {state: count for state, count in world.manager.states.items() if count} == {"ready": 2}
    world.table.end(world.running_container("s1"))
    await world.wait_for("s1", "gone")
    assert {state: count for state, count in world.manager.states.items() if count} == {"ready": 1, "gone": 1}
    await world.create("s1")
    await world.manager.destroy(S1)
    assert states_of(world) == ["ready", "gone", "ready", "destroying", "removed"]
    causes = [event.fields["cause"] for event in world.manager.events.recent() if event.fields.get("state") == "gone"]
    assert causes == ["killed"]
    removed = [event.fields for event in world.manager.events.recent() if event.kind == "workspace"]
    assert [(fields["what"], fields["cause"]) for fields in removed] == [("removed", "asked")]


async def test_a_user_is_busy_while_a_call_is_under_way(world: World) -> None:
    await world.create("s1")
    assert world.manager.busy_users() == set()
    with await world.manager.call(S1):
        assert world.manager.busy_users() == {UserRef(S1.tenant, UserId("ann"))}
    assert world.manager.busy_users() == set()


async def test_stats_count_the_processes_of_the_sandbox(world: World) -> None:
    await world.create("s1")
    alone = (await world.manager.stats(S1)).pids
    with await world.manager.call(S1) as runner:
        await runner.start_process(Exec(("sleep", "600")))
    assert (await world.manager.stats(S1)).pids == alone + 1


async def test_a_call_that_starts_before_an_idle_sandbox_is_stopped_keeps_it_running(tmp_path: Path) -> None:
    async with open_world(tmp_path, idle_timeout_s=3600) as world:
        await world.create("s1")
        sandbox = world.manager._sandboxes.find(S1)
        sandbox.last_used = float("-inf")
        with await world.manager.call(S1):
            await world.manager._hibernate_if_due(sandbox, "idle")
        await world.manager._hibernate_if_due(sandbox, "idle")  # it was just used
        assert world.manager.get(S1).state == "ready"
        sandbox.last_used = float("-inf")
        await world.manager._hibernate_if_due(sandbox, "idle")
        assert world.manager.get(S1).state == "hibernated"
