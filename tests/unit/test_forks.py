"""Forks over a fake engine: files and memory are copied, all of a call or none, and the source is as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import memo
from memo.documents import DocumentKey
from memo.errors import Unavailable
from memo.ids import SessionRef
from memo.stores import BaseStore
from sandboxd import failpoints
from sandboxd.errors import (
    Conflict,
    EngineRefused,
    EngineUnavailable,
    LimitReached,
    NotReady,
    SandboxdError,
    StoreUnavailable,
)
from sandboxd.models.fork import ForkRequest, ForkView
from sandboxd.runner.calls import Exec
from tests.world.world import HANG_S, World, managing, open_world, settings_in

pytestmark = pytest.mark.anyio

S1 = SessionRef.of("acme", "s1")
_ARTIFACT = "session/tool-results/call-1.txt"
FORK_POINTS = ["fork.intent", "fork.copied", "fork.committed", "fork.memory", "fork.mirrored"]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


@pytest.fixture
async def store() -> AsyncIterator[BaseStore]:
    async with memo.open_store("memory://") as opened:
        yield opened


@pytest.fixture
async def world(tmp_path: Path, store: BaseStore) -> AsyncIterator[World]:
    async with open_world(tmp_path, store=store) as world:
        await world.create("s1", agent="coder", env={"NAME": "value"}, labels={"team": "a"})
        await run(world, "echo first > file")
        await store.get_or_create("acme", "ann", "coder", "s1")
        await store.append_messages("acme", "s1", [{"role": "user", "content": "hello"}])
        await store.write_document(DocumentKey.of_session(S1, "NOTES.md"), "notes\n")
        await store.write_document(DocumentKey.of_user(S1.tenant, world.manager.get(S1).user, "USER.md"), "shared\n")
        await store.write_tool_result_artifact(S1, "call-1", "output\n")
        yield world


async def run(world: World, command: str, session: str = "s1") -> str:
    with await world.manager.call(SessionRef.of("acme", session)) as runner:
        return (await runner.exec(Exec(command))).stdout.decode()


async def fork(world: World, *sessions: str, request: str | None = None, **options: Any) -> ForkView:
    asked = ForkRequest.model_validate({"sessions": list(sessions) or None, **options})
    return await world.manager.fork(S1, asked, request)


def sessions_of(world: World) -> list[str]:
    return sorted(view.session for view in world.manager.of_tenant(S1.tenant))


async def wait_removed(world: World) -> None:
    """Wait until only the source is left."""
    with anyio.fail_after(HANG_S):
        while len(world.registered()) > 1 or sessions_of(world) != ["s1"]:
            await anyio.sleep(0.02)


async def test_a_fork_has_the_files_and_the_memory_of_its_source(world: World, store: BaseStore) -> None:
    made = await fork(world, "s2", "s3")
    assert made.left_out == []
    assert [(view.session, view.parent, view.state, view.created) for view in made.items] == [
        ("s2", "s1", "ready", True),
        ("s3", "s1", "ready", True),
    ]
    assert [(view.agent, view.labels) for view in made.items] == [("coder", {"team": "a"})] * 2
    memo_files = " ".join(f"/workspace/memo/{name}" for name in ("session/NOTES.md", "user/USER.md", _ARTIFACT))
    for session in ("s2", "s3"):
        assert await run(world, f"cat file {memo_files}", session) == "first\nnotes\nshared\noutput\n"
        assert await run(world, "echo $NAME", session) == "value\n"
        assert await store.load_all_messages("acme", session) == [{"role": "user", "content": "hello"}]
        (revision,) = await store.document_history(DocumentKey.of("acme", session, "session", "NOTES.md"))
        assert (revision.actor, revision.reason, revision.session) == ("fork", "forked from s1", "s1")


async def test_forks_and_their_source_diverge(world: World, store: BaseStore) -> None:
    await fork(world, "s2", "s3")
    for session in ("s1", "s2", "s3"):
        await run(world, f"echo {session} > file", session)
        await store.append_messages("acme", session, [{"role": "user", "content": session}])
    assert [await run(world, "cat file", session) for session in ("s1", "s2", "s3")] == ["s1\n", "s2\n", "s3\n"]
    assert (await store.load_all_messages("acme", "s2"))[-1]["content"] == "s2"
    assert len(await store.load_all_messages("acme", "s1")) == 2


async def test_a_fork_without_memory_is_an_empty_session(world: World, store: BaseStore) -> None:
    await fork(world, "s2", memory="none")
    names = "find /workspace/memo -name '*.md' -printf '%f,'"
    assert await run(world, f"cat file; {names}", "s2") == "first\nUSER.md,"
    assert await store.load_all_messages("acme", "s2") == []
    assert await store.get_session("acme", "s2") is not None


async def test_the_daemon_makes_up_names(world: World) -> None:
    made = await fork(world, count=3)
    names = {view.session for view in made.items}
    assert len(names) == 3
    assert all(name.startswith("s1-fork-") for name in names)


async def test_a_fork_of_a_fork_names_its_parent(world: World) -> None:
    await fork(world, "s2")
    made = await world.manager.fork(SessionRef.of("acme", "s2"), ForkRequest.model_validate({"session": "s3"}))
    assert made.items[0].parent == "s2"


async def test_a_target_with_a_sandbox_is_a_conflict(world: World) -> None:
    await world.create("s2")
    with pytest.raises(Conflict, match="cannot fork to session s2: it has a sandbox"):
        await fork(world, "s3", "s2")
    assert sessions_of(world) == ["s1", "s2"]


async def test_a_target_with_memory_is_a_conflict_and_unchanged(world: World, store: BaseStore) -> None:
    await store.get_or_create("acme", "ann", "coder", "s2")
    await store.append_messages("acme", "s2", [{"role": "user", "content": "mine"}])
    for options in ({}, {"memory": "none"}):
        with pytest.raises(Conflict, match="cannot fork to session s2: it has its own messages"):
            await fork(world, "s3", "s2", **options)
    assert sessions_of(world) == ["s1"]
    assert await store.load_all_messages("acme", "s2") == [{"role": "user", "content": "mine"}]
    assert await store.get_session("acme", "s3") is None


async def test_a_target_of_another_user_is_a_conflict(world: World, store: BaseStore) -> None:
    await store.get_or_create("acme", "eve", "coder", "s2")
    with pytest.raises(Conflict, match="belongs to another user"):
        await fork(world, "s2")
    assert sessions_of(world) == ["s1"]


async def test_more_forks_than_the_daemon_can_run_are_refused_at_once(tmp_path: Path) -> None:
    async with open_world(tmp_path, max_sandboxes=3) as world:
        await world.create("s1")
        with pytest.raises(LimitReached, match="cannot start 3 more sandboxes: 1 of at most 3 are running"):
            await fork(world, count=3)
        assert len(world.table.launched) == 1
        await fork(world, count=2)


async def test_when_one_fork_fails_none_is_left(world: World) -> None:
    world.table.refuse_launches(EngineRefused("cannot launch: a test says so"))
    before = world.on_disk()
    with pytest.raises(EngineRefused, match="a test says so"):
        await fork(world, "s2", "s3", "s4", "s5")
    assert sessions_of(world) == ["s1"]
    assert (len(world.running()), len(world.registered())) == (1, 1)
    assert world.on_disk() == before
    assert await run(world, "cat file") == "first\n"


async def test_a_fork_that_is_destroyed_under_way_ends_the_call(world: World) -> None:
    failpoints.arm("fork.copied=delay(300)")
    outcome: list[SandboxdError] = []

    async def forks() -> None:
        try:
            await fork(world, "s2", "s3")
        except SandboxdError as error:
            outcome.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(forks)
        with anyio.fail_after(HANG_S):
            while len(sessions_of(world)) < 3:
                await anyio.sleep(0.01)
        await world.manager.destroy(SessionRef.of("acme", "s2"))
    assert isinstance(outcome[0], NotReady)
    assert sessions_of(world) == ["s1"]
    assert world.running() == [world.sandbox_id("s1")]


@pytest.mark.parametrize("point", FORK_POINTS)
async def test_a_fork_that_fails_at_any_step_leaves_no_sandbox_and_can_be_repeated(world: World, point: str) -> None:
    failpoints.arm(f"{point}=error(EIO)")
    with pytest.raises(SandboxdError, match="cannot fork this session"):
        await fork(world, "s2", "s3")
    failpoints.arm("")
    assert sessions_of(world) == ["s1"]
    assert (len(world.running()), len(world.registered())) == (1, 1)
    assert [path.name for path in world.manager.layout.workspaces.iterdir()] == [world.sandbox_id("s1")]
    made = await fork(world, "s2", "s3")
    assert [view.state for view in made.items] == ["ready", "ready"]
    assert await run(world, "cat /workspace/memo/session/NOTES.md", "s3") == "notes\n"


async def test_a_store_that_is_down_fails_the_fork_before_anything_happens(
    world: World, store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_args: object, **_named: object) -> None:
        raise Unavailable("cannot read: a test says so")

    monkeypatch.setattr(store, "load_all_messages", fail)
    with pytest.raises(StoreUnavailable):
        await fork(world, "s2")
    assert sessions_of(world) == ["s1"]
    assert len(world.table.launched) == 1


async def test_a_store_that_fails_during_the_copy_fails_the_fork(
    world: World, store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_args: object, **_named: object) -> None:
        raise Unavailable("cannot write: a test says so")

    with monkeypatch.context() as patch:
        patch.setattr(store, "append_messages", fail)
        with pytest.raises(StoreUnavailable, match="a retry completes it"):
            await fork(world, "s2", "s3")
    assert sessions_of(world) == ["s1"]
    assert len(world.running()) == 1
    made = await fork(world, "s2", "s3")  # what is left of the copy does not count as memory of its own
    assert len(made.items) == 2


async def test_a_repeated_request_returns_the_same_forks(world: World) -> None:
    first = await fork(world, count=2, request="key-1")
    again = await fork(world, count=2, request="key-1")
    other = await fork(world, count=2, request="key-2")
    assert [view.container for view in again.items] == [view.container for view in first.items]
    assert not {view.session for view in other.items} & {view.session for view in first.items}


async def test_concurrent_calls_with_one_key_share_one_fork(world: World) -> None:
    answers: list[list[str | None]] = []

    async def forks() -> None:
        answers.append([view.container for view in (await fork(world, "s2", request="key-1")).items])

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(forks)
    assert answers[0] == answers[1] == answers[2]
    assert len(world.table.launched) == 2


async def fork_and_leave(world: World, *sessions: str, request: str | None = None) -> None:
    """Ask for a fork and disconnect once it is under way."""
    with anyio.fail_after(HANG_S):
        async with anyio.create_task_group() as callers:
            callers.start_soon(partial(fork, world, *sessions, request=request))
            while not world.manager._forks.under_way:
                await anyio.sleep(0.01)
            callers.cancel_scope.cancel()


async def test_a_fork_goes_on_when_its_caller_leaves(world: World) -> None:
    failpoints.arm("fork.copied=delay(200)")
    await fork_and_leave(world, "s2")
    with anyio.fail_after(HANG_S):
        while world.manager._forks.under_way:
            await anyio.sleep(0.01)
    assert world.manager.get(SessionRef.of("acme", "s2")).state == "ready"
    assert await run(world, "cat file", "s2") == "first\n"


@pytest.mark.parametrize("point", ["fork.intent", "fork.copied", "fork.committed", "fork.memory", "fork.mirrored"])
async def test_a_daemon_that_stops_during_a_fork_leaves_all_of_it_or_nothing(
    world: World, store: BaseStore, point: str
) -> None:
    failpoints.arm(f"{point}=delay(600000)")
    await fork_and_leave(world, "s2", "s3", request="key-1")
    with anyio.fail_after(HANG_S):
        while not await _is_at(world, store, point):
            await anyio.sleep(0.02)
    await world.stop()
    failpoints.arm("")
    async with managing(world.table, settings_in(world.directory), store) as manager:
        again = World(world.directory, world.table, manager)
        await again.wait_for("s1", "ready")
        if point in ("fork.intent", "fork.copied"):
            await wait_removed(again)
        made = await fork(again, "s2", "s3", request="key-1")
        assert [view.state for view in made.items] == ["ready", "ready"]
        for session in ("s2", "s3"):
            assert await run(again, "cat file /workspace/memo/session/NOTES.md", session) == "first\nnotes\n"
            assert await store.load_all_messages("acme", session) == [{"role": "user", "content": "hello"}]
        assert await run(again, "cat file") == "first\n"
        assert len(again.running()) == len(again.registered()) == 3


async def _is_at(world: World, store: BaseStore, point: str) -> bool:
    states = list(world.registered().values())
    if point == "fork.intent":
        return states.count("creating") == 2
    if point == "fork.copied":
        return any(path.is_file() for path in world.manager.layout.workspaces.iterdir())
    if point == "fork.committed":
        return states.count("ready") == 3
    return "call-1" in await store.list_tool_result_artifact_ids("acme:s2")  # the last that is copied


async def test_a_fork_of_a_hibernated_sandbox_wakes_a_plain_directory(world: World) -> None:
    await world.manager.hibernate(S1)
    await fork(world, "s2")
    assert await run(world, "cat file", "s2") == "first\n"


async def test_an_engine_that_does_not_answer_is_named(world: World) -> None:
    world.table.refuse_launches(EngineUnavailable("cannot launch: a test says so"))
    with pytest.raises(EngineUnavailable, match="a test says so"):
        await fork(world, "s2")
    await wait_removed(world)
