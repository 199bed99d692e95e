"""A failing store gives the same error on every route, whichever call fails."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import anyio
import pytest

from memo import InMemoryStore
from memo.errors import Corrupt, Timeout, Unavailable
from tests.unit.test_api_memo import SESSION, TENANT, USER, Wire, wired
from tests.world.serving import serving

pytestmark = pytest.mark.anyio

READS = [
    f"{SESSION}/memo",
    f"{SESSION}/memo/NOTES.md",
    f"{SESSION}/memo/NOTES.md/history",
    f"{USER}/memo/USER.md",
    f"{SESSION}/artifacts",
    f"{SESSION}/artifacts/call-1",
    f"{SESSION}/messages",
    f"{SESSION}/messages?limit=1",
    f"{TENANT}/sessions",
]
WRITES: list[tuple[str, str, dict[str, Any]]] = [
    ("PUT", f"{SESSION}/memo/NOTES.md", {"data": b"text"}),
    ("POST", f"{SESSION}/memo/NOTES.md", {"data": b"text"}),
    ("PUT", f"{SESSION}/artifacts/call-1", {"data": b"text"}),
    ("POST", f"{SESSION}/messages", {"json": {"messages": [{"role": "user", "content": "hello"}]}}),
    ("POST", f"{SESSION}/compaction", {"json": {"force": True}}),
]


class Fallible:
    """A store whose every call raises `error`, or never returns, once that is set."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.hangs = False
        self._store = InMemoryStore()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            if self.error is not None:
                raise self.error
            if self.hangs:
                await anyio.sleep_forever()
            return await found(*args, **named)

        return call


@pytest.mark.parametrize(
    ("error", "read", "written"),
    [
        (Corrupt("cannot read row 7"), (502, "store.corrupt", False), (502, "store.corrupt", False)),
        (Unavailable("cannot connect"), (503, "store.unavailable", True), (503, "store.unavailable", True)),
        (Timeout("cannot tell"), (503, "store.unavailable", True), (503, "store.unavailable", True)),
        (KeyError("secret"), (503, "store.unavailable", True), (503, "store.unavailable", True)),
        (None, (503, "store.unavailable", True), (503, "store.unavailable", True)),
    ],
    ids=["corrupt", "unavailable", "timeout", "foreign error", "hanging"],
)
async def test_every_route_gives_the_same_error_for_the_same_failure(
    tmp_path: Path, error: Exception | None, read: tuple[int, str, bool], written: tuple[int, str, bool]
) -> None:
    store = Fallible()
    # Only a hanging store needs a short timeout, and creating the sandbox must fit into it on a busy machine too.
    async with serving(tmp_path, store=store, store_timeout_s=2 if error is None else 30) as world:
        async for wire in wired(world):
            store.error, store.hangs = error, error is None

            async def check_read(wire: Wire, target: str) -> None:
                problem = await wire.problem("GET", target)
                assert (problem["status"], problem["code"], problem["retryable"]) == read, target
                assert "secret" not in problem["detail"]

            async def check_write(wire: Wire, method: str, target: str, options: dict[str, Any]) -> None:
                problem = await wire.problem(method, target, **options)
                assert (problem["status"], problem["code"], problem["retryable"]) == written, target
                if error is None or isinstance(error, Timeout):
                    assert problem["outcome_unknown"] is True, target

            async with anyio.create_task_group() as tasks:  # together, so that a hanging store is waited for once
                for target in READS:
                    tasks.start_soon(check_read, wire, target)
                for method, target, options in WRITES:
                    tasks.start_soon(check_write, wire, method, target, options)
            store.hangs = False  # so that closing the world does not wait for it
