"""StepJournal: what each run of a workflow has done, as records in a store that keeps records.

A run has one runner. Starting it again fences the runner before: its next entry is refused, so a process that was
thought to be dead cannot write into the run that replaced it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from memo.errors import Absent, Corrupt, MemoError
from memo.records import Delete, Merge, Put, RecordScope, require_records
from memo.steps.storage_step import StepId

_RUNNERS = "runner"
_STEPS = "step"


class RunTaken(MemoError):
    code = "E_WORKFLOW_RUN_TAKEN"


@dataclass(frozen=True, slots=True)
class StepEntry:
    """A finished step. `operation` is the storage operation that it ran; None for a step that ran a function."""

    result: Any
    operation: dict[str, Any] | None = None


class StepJournal:
    """`place` separates the workflows of different agents."""

    def __init__(self, store: object, *, tenant: str = "local", place: str = "workflows") -> None:
        self._store = require_records(store)
        self._tenant = tenant
        self._place = place
        self._scope(_STEPS, "run")  # an invalid tenant or place fails now, not at the first step

    async def start(self, run_id: str) -> str:
        """Make the caller the run's only runner; return its token. The runner before, if any, is fenced."""
        token = uuid.uuid4().hex
        scope = self._scope(_RUNNERS, run_id)
        await self._store.apply_records([Put(scope.key(token), {"token": token})])
        runners = [record.id for record in await self._store.list_records(scope)]
        if runners[-1:] != [token]:  # of two that start at once, both see the same order
            await self._store.apply_records([Delete(scope.key(token))])
            raise _taken(run_id)
        if len(runners) > 1:
            await self._store.apply_records([Delete(scope.key(other)) for other in runners[:-1]])
        return token

    async def load(self, run_id: str) -> dict[str, StepEntry]:
        """Return the finished steps of the run by their keys, in the order in which they were recorded."""
        records = await self._store.list_records(self._scope(_STEPS, run_id))
        return {record.id: _entry(run_id, record.id, record.value) for record in records}

    async def check(self, run_id: str, token: str) -> None:
        """Raise RunTaken if this runner was fenced."""
        if await self._store.read_record(self._scope(_RUNNERS, run_id).key(token)) is None:
            raise _taken(run_id)

    async def record(self, run_id: str, token: str, step: str, entry: StepEntry) -> None:
        """Store a finished step durably, or raise RunTaken if this runner was fenced."""
        value = {"result": entry.result} | ({} if entry.operation is None else {"operation": entry.operation})
        runner = self._scope(_RUNNERS, run_id).key(token)
        try:
            # The merge changes nothing. It refuses the whole batch if a newer runner has removed this one's record.
            await self._store.apply_records([Merge(runner, {}), Put(self._scope(_STEPS, run_id).key(step), value)])
        except Absent:
            raise _taken(run_id) from None

    async def forget(self, run_id: str) -> None:
        """Remove the run, which fences its runner. Starting it again runs every step again."""
        scopes = (self._scope(_RUNNERS, run_id), self._scope(_STEPS, run_id))
        keys = [scope.key(record.id) for scope in scopes for record in await self._store.list_records(scope)]
        if keys:
            await self._store.apply_records([Delete(key) for key in keys])

    def _scope(self, kind: str, run_id: str) -> RecordScope:
        return RecordScope.of(self._tenant, f"workflow.{kind}", f"{self._place}/{StepId(run_id)}")


def _taken(run_id: str) -> RunTaken:
    return RunTaken(f"cannot continue run {run_id}: it was started again elsewhere; only the newest runner continues")


def _entry(run_id: str, step: str, value: dict[str, Any]) -> StepEntry:
    if "result" not in value:
        raise Corrupt(f"cannot read step {step} of run {run_id}: its entry has no result")
    return StepEntry(value["result"], value.get("operation"))
