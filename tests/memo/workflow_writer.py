"""Run a workflow, kill it at every point, start it again, and report what each step did.

Run as a program: `workflow_writer KIND DIRECTORY`. A point is before a step's effect, after it, after its entry was
recorded, or between two steps. It forks for every run, so that imports run only once. Prints one line of JSON: for
every point the effects of all starts, in order, and the final result.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from memo.steps import StepJournal, StorageStep, Workflow, store_handlers
from tests.memo.turn.stores import opened

STEPS = ("order", "pay", "ship")
PLACES = ("before", "effect", "recorded", "between")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KilledAfter:
    """A store that kills its process right after it has recorded the entry of one step."""

    def __init__(self, store: Any, step: str) -> None:
        self._store = store
        self._step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def apply_records(self, changes: Any) -> Any:
        result = await self._store.apply_records(changes)
        if any(change.key.id == self._step and str(change.key.scope.kind) == "workflow.step" for change in changes):
            kill()
        return result


async def work(kind: str, path: Path, effects: Path, point: tuple[str, str] | None) -> None:
    step, place = point or ("", "")
    async with opened(kind, path) as store:
        journaled = KilledAfter(store, step) if place == "recorded" else store
        async with Workflow(StepJournal(journaled), "run-1") as run:
            done: list[Any] = []
            for name in STEPS:

                def act(name: str = name) -> str:
                    if (name, "before") == (step, place):
                        kill()
                    count = write_effect(effects, name)
                    if (name, "effect") == (step, place):
                        kill()
                    return f"{name} {count}"

                done.append(await run.step(name, act))
                if (name, "between") == (step, place):
                    kill()
            store_it = run.storage(store_handlers(store))
            await store_it(
                StorageStep.from_json({"event": {"method": "setup.set", "id": "u", "value": {"done": done}}})
            )
            effects.with_suffix(".json").write_text(
                json.dumps(await store_it(StorageStep.from_json({"event": {"method": "setup.get", "id": "u"}})))
            )


def write_effect(effects: Path, name: str) -> int:
    """Append the name durably and return how often it is there."""
    with effects.open("a+") as file:
        file.write(f"{name}\n")
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        return file.read().split().count(name)


def in_child(run: Callable[[], None]) -> int:
    """Fork, run and return the status of the child."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def main(kind: str, directory: str) -> None:
    told = []
    for point in [(step, place) for step in STEPS for place in PLACES]:
        path = Path(directory) / "-".join(point)
        path.mkdir()
        effects = path / "effects"
        killed = in_child(lambda: anyio.run(work, kind, path, effects, point))  # noqa: B023
        finished = [in_child(lambda: anyio.run(work, kind, path, effects, None)) for _ in range(2)]  # noqa: B023
        told.append({
            "point": point,
            "killed_by": os.WTERMSIG(killed) if os.WIFSIGNALED(killed) else None,
            "finished": finished,
            "effects": effects.read_text().split(),
            "result": json.loads(effects.with_suffix(".json").read_text()),
        })  # fmt: skip
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
