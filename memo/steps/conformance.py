"""`check_handlers` and `check_journal`: the conformance checks for the fifteen handlers and for a journal of workflows.

A failure names the broken promise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio

from memo.conformance import BrokenPromise, Factory, made
from memo.errors import MemoError
from memo.steps.step_journal import RunTaken, StepJournal
from memo.steps.step_records import record_of
from memo.steps.storage_step import METHODS, StorageStep
from memo.steps.workflow import StepDiverged, Workflow

_Handlers = Mapping[str, Callable[..., Any]]

SAMPLES: dict[str, dict[str, Any]] = {
    "session": {"id": "s1", "createdAt": 1, "updatedAt": 2, "model": "m", "activeTools": ["a"], "extra": {"ü": [None]}},
    "message": {"id": "m1", "sessionId": "s1", "role": "user", "createdAt": 3, "usage": {"input": 1}},
    "part": {"id": "p1", "sessionId": "s1", "messageId": "m1", "type": "text", "index": 0, "text": "hi"},
    "sandbox": {"id": "b1", "createdAt": 1, "updatedAt": 1, "binding": "local", "metadata": {"k": 1}},
    "setup": {"id": "u1", "anything": True},
}


async def check_handlers(make: Factory) -> None:
    """Raise BrokenPromise, an AssertionError that names the promise.

    `make` returns handlers for empty storage: the mapping, an awaitable of it, or an async context manager.
    """
    for check in (_check_all_there, _check_kinds, _check_updates, _check_lists, _check_concurrent_updates):
        async with made(make) as handlers:
            await check(handlers)


async def _check_all_there(handlers: _Handlers) -> None:
    missing = [method for method in METHODS if method not in handlers]
    _promise(not missing, f"all fifteen handlers exist, but {missing} are missing")


async def _check_kinds(handlers: _Handlers) -> None:
    for kind, value in SAMPLES.items():
        id = value["id"]
        _promise(await _run(handlers, f"{kind}.get", id=id) is None, f"a {kind} that was never set is None")
        _promise(await _run(handlers, f"{kind}.set", id=id, value=value) is None, f"setting a {kind} returns nothing")
        await _run(handlers, f"{kind}.set", id=id, value=value)
        _promise(await _run(handlers, f"{kind}.get", id=id) == value, f"a {kind} keeps every field, unknown ones too")
        _promise(await _run(handlers, f"{kind}.get", id="other") is None, f"one {kind} is not another")
        typed = record_of(kind, value)
        await _run(handlers, f"{kind}.set", id=id, value=typed.to_json())
        _promise(record_of(kind, await _run(handlers, f"{kind}.get", id=id)) == typed, f"a typed {kind} is read as set")


async def _check_updates(handlers: _Handlers) -> None:
    for kind in ("session", "message", "sandbox"):
        value = SAMPLES[kind]
        await _refused(handlers, f"{kind}.update", id=value["id"], updates={"a": 1})
        _promise(
            await _run(handlers, f"{kind}.get", id=value["id"]) is None, f"updating a missing {kind} does not create it"
        )
        await _run(handlers, f"{kind}.set", id=value["id"], value=value)
        for _ in range(2):  # a replayed update counts once
            merged = await _run(handlers, f"{kind}.update", id=value["id"], updates={"updatedAt": 9, "new": None})
            _promise(merged == {**value, "updatedAt": 9, "new": None}, f"updating a {kind} returns the merged record")
        _promise(await _run(handlers, f"{kind}.get", id=value["id"]) == merged, f"an updated {kind} stays updated")


async def _check_lists(handlers: _Handlers) -> None:
    for kind in ("message", "part"):
        _promise(await _list(handlers, kind, "s1") == [], f"a session without a {kind} has an empty list")
        for id, session, place in (("x3", "s1", 3), ("x1", "s1", 1), ("x2", "s2", 2)):
            changes = {"id": id, "sessionId": session, "createdAt": place, "index": place}
            await _run(handlers, f"{kind}.set", id=id, value={**SAMPLES[kind], **changes})
        _promise(await _list(handlers, kind, "s1") == ["x1", "x3"], f"every {kind} of a session is listed, in order")
        _promise(await _list(handlers, kind, "s2") == ["x2"], f"a {kind} of another session is not listed")
    await _run(handlers, "message.update", id="x2", updates={"sessionId": "s1"})
    _promise(await _list(handlers, "message", "s2") == [], "a message that moved is not listed in its old session")


async def _check_concurrent_updates(handlers: _Handlers) -> None:
    await _run(handlers, "session.set", id="s", value={"id": "s"})

    async def update(number: int) -> None:
        await _run(handlers, "session.update", id="s", updates={f"f{number}": number})

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(update, number)
    value = await _run(handlers, "session.get", id="s")
    _promise(value == {"id": "s", **{f"f{n}": n for n in range(8)}}, "no concurrent update is lost")


async def check_journal(make: Factory) -> None:
    """Raise BrokenPromise if a journal does not keep what workflows need.

    `make` returns a StepJournal, or what has its methods: the object, an awaitable of it, or an async context manager.
    """
    for check in (_check_replay, _check_failed_step, _check_runs, _check_fence, _check_forget):
        async with made(make) as journal:
            await check(journal)


class _Counted:
    """Counts its calls, and returns a result that tells them apart."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self) -> dict[str, Any]:
        self.calls += 1
        return {"call": self.calls, "text": "ü", "nothing": None}


async def _check_replay(journal: StepJournal) -> None:
    work = _Counted()
    seen = []
    for _ in range(2):
        async with Workflow(journal, "r1") as run:
            seen.append([await run.step("work", work) for _ in range(3)])
    _promise(work.calls == 3, "a step that was recorded is not run again")
    _promise(seen[0] == seen[1] == [{"call": n, "text": "ü", "nothing": None} for n in (1, 2, 3)],
             "a replay returns the recorded results, in order")  # fmt: skip
    for id in ("u1", "u2"):
        step = StorageStep.from_json({"event": {"method": "setup.get", "id": id}})
        for _ in range(2):
            async with Workflow(journal, "r1") as run:
                await run.dispatch(step, {"setup.get": lambda id: work()})
    _promise(work.calls == 5, "a replay continues with new steps, and a storage operation is a step")
    async with Workflow(journal, "r1") as run:
        try:
            await run.step("setup.get u1", work)
        except StepDiverged:
            return
    _promise(False, "a step that recorded another operation is refused")


async def _check_failed_step(journal: StepJournal) -> None:
    work = _Counted()

    async def fail() -> None:
        await work()
        raise LookupError("on purpose")

    for _ in range(2):
        async with Workflow(journal, "r1") as run:
            try:
                await run.step("work", fail)
            except LookupError:
                continue
            _promise(False, "the exception of a step is raised")
    _promise(work.calls == 2, "a step that failed runs again")


async def _check_runs(journal: StepJournal) -> None:
    work = _Counted()
    for id in ("r1", "r2", "r1", "r2"):
        async with Workflow(journal, id) as run:
            await run.step("work", work)
    _promise(work.calls == 2, "each run has its own steps")


async def _check_fence(journal: StepJournal) -> None:
    work = _Counted()
    async with Workflow(journal, "r1") as older:
        await older.step("first", work)
        async with Workflow(journal, "r1") as newer:
            await newer.step("second", work)
            try:
                await older.step("third", work)
            except RunTaken:
                pass
            else:
                _promise(False, "the runner before is fenced when a run is started again")
            _promise(work.calls == 2, "a fenced runner runs no step")
            await newer.step("third", work)
    _promise(work.calls == 3, "the newest runner continues")


async def _check_forget(journal: StepJournal) -> None:
    work = _Counted()
    for _ in range(2):
        async with Workflow(journal, "r1") as run:
            await run.step("work", work)
        await journal.forget("r1")
    _promise(await journal.load("r1") == {}, "a forgotten run has no steps")
    _promise(work.calls == 2, "a forgotten run starts from its first step")


async def _list(handlers: _Handlers, kind: str, session: str) -> list[str]:
    return [value["id"] for value in await _run(handlers, f"{kind}.listBySession", sessionId=session)]


async def _run(handlers: _Handlers, method: str, **parameters: Any) -> Any:
    step = StorageStep.model_validate({"event": {"method": method, **parameters}})
    return await StorageStep.model_validate_json(step.model_dump_json()).on(handlers)


async def _refused(handlers: _Handlers, method: str, **parameters: Any) -> None:
    try:
        await _run(handlers, method, **parameters)
    except (MemoError, KeyError, LookupError, ValueError):
        return
    _promise(False, f"{method} of a missing id is an error")


def _promise(kept: bool, promise: str) -> None:
    if not kept:
        raise BrokenPromise(promise, "it was not kept")
