"""Workflow: a durable run of steps. A step that finished is never run again; its recorded result is returned instead.

The code between steps runs again at every start, so it must take the same path: what depends on time, chance or the
outside world belongs in a step. A step that was running at a crash runs again.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import anyio

from memo.errors import InvalidContent, MemoError, Timeout
from memo.records import checked_name
from memo.steps.step_journal import StepEntry, StepJournal
from memo.steps.step_records import plain
from memo.steps.storage_step import StepId, StorageStep

RECORD_TIMEOUT_S = 30.0


class StepDiverged(MemoError):
    code = "E_WORKFLOW_STEP_DIVERGED"


class Workflow:
    """`async with Workflow(journal, "run-7") as run:` starts the run, or continues it after a crash."""

    def __init__(self, journal: StepJournal, run_id: str) -> None:
        self.run_id = str(StepId(run_id))
        self._journal = journal
        self._token: str | None = None
        self._finished: dict[str, StepEntry] = {}
        self._uses: dict[str, int] = {}
        self._running: set[str] = set()

    async def __aenter__(self) -> Self:
        self._token = await self._journal.start(self.run_id)
        self._finished = await self._journal.load(self.run_id)  # after start: the runner before can add nothing now
        self._uses.clear()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._token = None

    async def step(self, name: str, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Run the sync or async function once in the life of the run and return its result, which must be JSON.

        A name that is used again counts up: the second `pay` is another step. Steps that run at the same time need
        different names. An exception is raised and not recorded, so the next start runs the step again.
        """
        return await self._once(name, None, lambda: function(*args, **named))

    async def dispatch(self, step: StorageStep, handlers: Mapping[str, Callable[..., Any]]) -> Any:
        """Run the storage step on the handlers once in the life of the run and return its result."""
        operation = step.to_json()["event"]
        subject = operation.get("id", operation.get("sessionId"))
        return await self._once(f"{operation['method']} {subject}", operation, lambda: step.on(handlers))

    def storage(self, handlers: Mapping[str, Callable[..., Any]]) -> Callable[[StorageStep], Awaitable[Any]]:
        """Return a storage function for these handlers whose every operation is a step of this run."""

        async def store(step: StorageStep) -> Any:
            return await self.dispatch(step, handlers)

        return store

    def key_of(self, name: str) -> str:
        """Return a key that stays the same when the next step of this name runs again after a crash.

        Send it to another service as its idempotency key.
        """
        return f"{self.run_id}/{self._next(name)}"

    def _next(self, name: str) -> str:
        use = self._uses.get(checked_name("step name", name), 0) + 1
        return name if use == 1 else f"{name}#{use}"

    async def _once(self, name: str, operation: dict[str, Any] | None, call: Callable[[], Any]) -> Any:
        if self._token is None:
            raise InvalidContent(f"cannot run step {name}: the workflow is not open; use `async with Workflow(…)`")
        if name in self._running:
            raise InvalidContent(
                f"cannot run step {name} twice at the same time: wait for the first, or give it its own name"
            )
        key = self._next(name)
        self._running.add(name)
        try:
            if key in self._finished:
                result = self._replayed(key, operation)
            else:
                result = await self._run(key, operation, call, self._token)
            self._uses[name] = self._uses.get(name, 0) + 1
            return result
        finally:
            self._running.discard(name)

    def _replayed(self, key: str, operation: dict[str, Any] | None) -> Any:
        entry = self._finished[key]
        if entry.operation != operation:
            raise StepDiverged(
                f"cannot replay step {key} of run {self.run_id}: it recorded another operation; make the code between "
                "steps take the same path every time, or use a new run id"
            )
        return _copied(key, entry.result)

    async def _run(self, key: str, operation: dict[str, Any] | None, call: Callable[[], Any], token: str) -> Any:
        await self._journal.check(self.run_id, token)
        result = call()
        if inspect.isawaitable(result):
            result = await result
        entry = StepEntry(_copied(key, plain(result)), operation)
        # Shielded: a cancelled task must not forget a step that it has run.
        with anyio.CancelScope(shield=True), anyio.move_on_after(RECORD_TIMEOUT_S) as deadline:
            await self._journal.record(self.run_id, token, key, entry)
        if deadline.cancelled_caught:
            raise Timeout(f"cannot record step {key} of run {self.run_id}: timed out after {RECORD_TIMEOUT_S:g} s")
        self._finished[key] = entry
        return _copied(key, entry.result)  # what a replay would return, so that both take the same path


def _copied(key: str, result: Any) -> Any:
    try:
        return json.loads(json.dumps(result, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError):
        raise InvalidContent(f"cannot record step {key}: its result is not JSON; return plain values") from None
