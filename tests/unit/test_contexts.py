"""Contexts over a runner whose container lies: whatever it sends, the daemon answers with an error and is bounded."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from sandboxd.contexts.bridge_lines import MAX_LINE_BYTES
from sandboxd.contexts.contexts import create_context, get_context, list_contexts, run_code
from sandboxd.errors import (
    ContextBusy,
    ContextFailed,
    ContextNotFound,
    ContextUnsupported,
    NothingListens,
    StreamClosed,
)
from sandboxd.models.context import RunBody
from sandboxd.models.process import KilledProcess, Process, ProcessOutput, SignalName
from sandboxd.runner.calls import Exec, ProcessLabel

pytestmark = pytest.mark.anyio

END = {"ok": True, "count": 1, "timed_out": False, "truncated": False, "lost": None, "ms": 1.0}


def line(message: object) -> bytes:
    return json.dumps(message).encode() + b"\n"


class LyingStream:
    def __init__(self, pieces: list[bytes], *, resets: bool) -> None:
        self._pieces = list(pieces)
        self._resets = resets
        self.sent = b""

    async def send(self, data: bytes) -> None:
        self.sent += data

    async def receive(self) -> bytes:
        if self._pieces:
            return self._pieces.pop(0)
        if self._resets:
            raise StreamClosed("cannot receive from the sandbox: reset")
        return b""


class LyingRunner:
    """A runner whose context answers every request with these pieces."""

    max_timeout_s = 3600.0

    def __init__(self, *pieces: bytes, printed: bytes = b"", listens: bool = True, resets: bool = False) -> None:
        self._pieces = list(pieces)
        self._printed = printed
        self._listens = listens
        self._resets = resets
        self.killed: list[str] = []

    def _process(self) -> Process:
        return Process(
            id="p1",
            command="python3",
            started_at=datetime.now(UTC),
            running=not self.killed,
            exit_code=137 if self.killed else None,
            output_bytes=len(self._printed),
            context="c",
        )

    async def start_process(self, call: Exec, *, label: ProcessLabel | None = None) -> Process:
        return self._process()

    async def list_processes(self) -> list[Process]:
        return [self._process()]

    async def read_process(
        self, process_id: str, offset: int = 0, limit: int = 262_144, wait_s: float = 0
    ) -> ProcessOutput:
        process = self._process().model_copy(update={"running": False})
        return ProcessOutput(
            process=process, offset=offset, data=self._printed[offset:], next_offset=len(self._printed)
        )

    async def kill_process(self, process_id: str, name: SignalName = "KILL", grace_s: float = 0) -> KilledProcess:
        self.killed.append(process_id)
        return KilledProcess(**{**dict(self._process()), "ended_by": "KILL"})

    @asynccontextmanager
    async def dial(self, *, unix: str | None = None) -> AsyncGenerator[LyingStream]:
        if not self._listens:
            raise NothingListens("cannot connect: no process in the sandbox listens there")
        yield LyingStream(self._pieces, resets=self._resets)


BEGAN = line({"began": True})


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"not json\n"],
        [b"[]\n"],
        [b"[" * 100_000 + b"\n"],
        [BEGAN, b"x" * 65_536 * 20],
        [BEGAN, line({"type": "unknown"})],
        [BEGAN, line({"type": "stdout", "text": 5})],
        [BEGAN, line({"type": "result", "data": []})],
        [BEGAN, line({"type": "result", "data": {str(n): "" for n in range(100)}, "omitted": {}})],
        [BEGAN, line({"type": "result", "data": {}, "omitted": {"a": -1}})],
        [BEGAN, line({"end": {}})],
        [BEGAN, line({"end": {**END, "lost": {"why": "moon"}}})],
        [BEGAN, line({"end": {**END, "ms": float("inf")}})],
        [BEGAN, line({"end": {**END, "count": -1}})],
        [BEGAN, line({"end": 7})],
        [BEGAN, *[line({"type": "stdout", "text": "x" * 60_000})] * 40],
        [BEGAN, *[line({"type": "part", "mime": str(n), "text": ""}) for n in range(100)]],
        [BEGAN],
    ],
)
async def test_a_context_that_lies_is_an_error_and_nothing_else(pieces: list[bytes]) -> None:
    with pytest.raises(ContextFailed, match=r"^cannot"):
        await run_code(LyingRunner(*pieces), "c", RunBody(code="1", max_output_bytes=100_000))


async def test_a_stream_that_is_reset_is_an_error_of_the_context() -> None:
    with pytest.raises(ContextFailed, match="has ended"):
        await run_code(LyingRunner(BEGAN, resets=True), "c", RunBody(code="1"))


async def test_lines_may_arrive_in_any_pieces() -> None:
    whole = BEGAN + line({"type": "stdout", "text": "ä\n"}) + line({"type": "stdout", "text": "b"}) + line({"end": END})
    for size in (1, 2, 7, len(whole)):
        pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
        result = await run_code(LyingRunner(*pieces), "c", RunBody(code="1"))
        assert result.ok
        assert [output.data for output in result.outputs] == [{"text/plain": "ä\nb"}]
    assert len(whole) < MAX_LINE_BYTES


async def test_a_busy_context_refuses() -> None:
    with pytest.raises(ContextBusy):
        await run_code(LyingRunner(line({"refused": "busy"})), "c", RunBody(code="1"))


async def test_a_context_that_does_not_listen_yet_is_starting() -> None:
    runner = LyingRunner(listens=False)
    assert (await get_context(runner, "c")).state == "starting"
    assert [context.state for context in await list_contexts(runner)] == ["starting"]


async def test_a_context_whose_process_has_ended_says_so() -> None:
    runner = LyingRunner(listens=False)
    await runner.kill_process("p1")
    with pytest.raises(ContextNotFound, match="has been killed; create it again"):
        await run_code(runner, "c", RunBody(code="1"))
    with pytest.raises(ContextNotFound, match="none of that name"):
        await run_code(runner, "other", RunBody(code="1"))


@pytest.mark.parametrize(
    ("printed", "error", "says"),
    [
        (b"", ContextFailed, "it printed nothing"),
        (b"Traceback ...\nMemoryError\n", ContextFailed, "MemoryError"),
        (line({"bridge": "failed", "cause": {"why": "oom"}}), ContextFailed, "more memory"),
        (line({"bridge": "unsupported", "missing": ["ipykernel"]}), ContextUnsupported, "no ipykernel.*`interpreter`"),
        (b'{"bridge"\n', ContextFailed, "did not start"),
    ],
)
async def test_a_context_that_does_not_start_leaves_no_process(
    printed: bytes, error: type[Exception], says: str
) -> None:
    runner = LyingRunner(printed=printed)
    with pytest.raises(error, match=says):
        await create_context(runner, "c")
    assert runner.killed == ["p1"]


async def test_a_context_that_starts_is_idle() -> None:
    context = await create_context(LyingRunner(printed=b"noise\n" + line({"bridge": "ready"})), "c")
    assert (context.id, context.state, context.execution_count) == ("c", "idle", 0)
