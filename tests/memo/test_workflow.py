"""Durable runs of steps: what finished is never run again, on every store, and after kill -9 at every point."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from memo import InMemoryStore
from memo.errors import InvalidContent, InvalidKey, Unsupported
from memo.steps import (
    RunTaken,
    StepDiverged,
    StepJournal,
    StepSession,
    StorageStep,
    Workflow,
    check_journal,
    local_storage,
    store_handlers,
)
from tests.memo.turn.stores import DURABLE, STORES, opened
from tests.memo.workflow_writer import PLACES, STEPS

pytestmark = pytest.mark.anyio


def step_of(**event: Any) -> StorageStep:
    return StorageStep.from_json({"event": event})


# Specification: 004.2
@pytest.mark.parametrize("kind", STORES)
async def test_a_journal_keeps_its_promises_on_a_real_store(kind: str, tmp_path: Path) -> None:
    numbers = count()

    @asynccontextmanager
    async def make() -> AsyncIterator[StepJournal]:
        place = tmp_path / str(next(numbers))
        place.mkdir()
        async with opened(kind, place) as store:
            yield StepJournal(store)

    await check_journal(make)


async def test_the_check_names_the_promise_that_a_journal_breaks() -> None:
    class Forgetful(StepJournal):
        async def record(self, *args: Any, **named: Any) -> None:
            return None

    class Unfenced(StepJournal):
        async def check(self, *args: Any) -> None:
            return None

    with pytest.raises(AssertionError, match="is not run again"):
        await check_journal(lambda: Forgetful(InMemoryStore()))
    with pytest.raises(AssertionError, match="a fenced runner runs no step"):
        await check_journal(lambda: Unfenced(InMemoryStore()))


# Specification: 004.2
@pytest.mark.parametrize("kind", DURABLE)
def test_a_workflow_killed_at_any_point_continues_without_repeating_a_recorded_step(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.memo.workflow_writer", kind, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert [tuple(one["point"]) for one in told] == [(step, place) for step in STEPS for place in PLACES]
    for one in told:
        killed_step, place = one["point"]
        assert one["killed_by"] == signal.SIGKILL, one
        assert one["finished"] == [0, 0], one
        # Only a step with an effect but without an entry is repeated; and the result is that of the recorded run.
        repeated = {killed_step} if place == "effect" else set()
        assert one["effects"] == [name for name in STEPS for _ in range(2 if name in repeated else 1)], one
        expected = [f"{name} {2 if name in repeated else 1}" for name in STEPS]
        assert one["result"] == {"done": expected}, one


# Specification: 004.3
async def test_a_storage_function_inside_a_workflow_replays_what_it_read_and_writes_nothing_twice() -> None:
    store = InMemoryStore()
    handlers = store_handlers(store)
    writes: list[dict[str, Any]] = []

    async def write(p: dict[str, Any]) -> None:
        writes.append(p)
        await handlers["session.set"](p)

    seen = []
    for updated_at in (1, 2):
        async with Workflow(StepJournal(store), "run") as run:
            storage = run.storage({**handlers, "session.set": write})
            now = await run.step("now", lambda: updated_at)  # noqa: B023
            session = StepSession(id="s", created_at=1, updated_at=now, model="m")
            await storage(step_of(method="session.set", id="s", value=session.to_json()))
            seen.append(await storage(step_of(method="session.get", id="s")))
        await handlers["session.update"](id="s", updates={"model": "changed outside"})
    assert seen == [{"id": "s", "createdAt": 1, "updatedAt": 1, "model": "m"}] * 2
    assert len(writes) == 1


async def test_the_journal_is_independent_of_where_the_records_are(tmp_path: Path) -> None:
    storage = local_storage(dir=tmp_path)
    journal = StepJournal(InMemoryStore())
    for _ in range(2):
        async with Workflow(journal, "run") as run:
            await run.dispatch(step_of(method="setup.set", id="u", value={"n": 1}), storage)
        (tmp_path / "setup" / "u.json").unlink(missing_ok=True)
    assert not (tmp_path / "setup" / "u.json").exists(), "the recorded step was not run again"


async def test_a_workflow_that_takes_another_path_is_refused() -> None:
    journal = StepJournal(InMemoryStore())
    handlers = store_handlers(InMemoryStore())
    async with Workflow(journal, "run") as run:
        await run.dispatch(step_of(method="setup.set", id="u", value={"n": 1}), handlers)
    async with Workflow(journal, "run") as run:
        with pytest.raises(StepDiverged, match=r"setup\.set u .*another operation"):
            await run.dispatch(step_of(method="setup.set", id="u", value={"n": 2}), handlers)


async def test_a_step_that_was_started_elsewhere_in_the_meantime_is_not_recorded() -> None:
    journal = StepJournal(InMemoryStore())
    async with Workflow(journal, "run") as older:

        async def overtaken() -> str:
            async with Workflow(journal, "run") as newer:
                await newer.step("work", lambda: "newer")
            return "older"

        with pytest.raises(RunTaken, match="only the newest runner continues"):
            await older.step("work", overtaken)
    async with Workflow(journal, "run") as run:
        assert await run.step("work", lambda: "again") == "newer"


async def test_a_cancelled_task_still_records_the_step_that_it_has_run() -> None:
    journal = StepJournal(InMemoryStore())
    with anyio.CancelScope() as scope:
        async with Workflow(journal, "run") as run:
            await run.step("work", scope.cancel)
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert list(await journal.load("run")) == ["work"]


async def test_the_key_of_a_step_is_the_same_when_it_runs_again() -> None:
    journal = StepJournal(InMemoryStore())
    keys = []

    async def pay() -> None:
        keys.append(run.key_of("pay"))
        if len(keys) == 1:
            raise ConnectionError("the answer was lost")

    for _ in range(2):
        async with Workflow(journal, "run-7") as run:
            try:
                await run.step("pay", pay)
            except ConnectionError:
                continue
            assert run.key_of("pay") == "run-7/pay#2"
    assert keys == ["run-7/pay", "run-7/pay"]


async def test_steps_of_different_names_may_run_at_the_same_time() -> None:
    journal = StepJournal(InMemoryStore())
    both = anyio.Event()

    async def first() -> int:
        await both.wait()
        return 1

    async def second() -> int:
        both.set()
        return 2

    async with Workflow(journal, "run") as run, anyio.create_task_group() as tasks:
        tasks.start_soon(run.step, "first", first)
        tasks.start_soon(run.step, "second", second)
    assert {key: entry.result for key, entry in (await journal.load("run")).items()} == {"first": 1, "second": 2}


async def test_an_invalid_step_is_refused_before_or_instead_of_being_recorded() -> None:
    journal = StepJournal(InMemoryStore())
    with pytest.raises(InvalidKey):
        Workflow(journal, "../run")
    run = Workflow(journal, "run")
    with pytest.raises(InvalidContent, match="not open"):
        await run.step("work", lambda: 1)
    async with run:
        with pytest.raises(InvalidContent, match="not JSON"):
            await run.step("work", object)
        with pytest.raises(InvalidKey):
            await run.step("", lambda: 1)

        async def again() -> None:
            await run.step("outer", lambda: 1)

        with pytest.raises(InvalidContent, match="twice at the same time"):
            await run.step("outer", again)
        assert await run.step("tuple", lambda: (1, 2)) == [1, 2], "the first run sees what a replay sees"
    assert list(await journal.load("run")) == ["tuple"]
    with pytest.raises(Unsupported):
        StepJournal(object())


async def test_two_tenants_have_their_own_runs() -> None:
    store = InMemoryStore()
    for tenant in ("acme", "globex"):
        async with Workflow(StepJournal(store, tenant=tenant), "run") as run:
            assert await run.step("who", lambda: tenant) == tenant  # noqa: B023
