"""Reports: pieces and full texts, sealing, slow listeners, and the audit of what was never stored."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from memo.errors import InvalidContent
from memo.turn import ExecutorError, Ghost, StreamSealed
from memo.turn.events import EVENTS, Event, MessageReport, ToolCallReport
from tests.memo.turn.acting import recording, run, runner, sample

pytestmark = pytest.mark.anyio


async def test_pieces_add_up_and_the_last_one_is_marked_complete() -> None:
    seen: list[tuple[str, str, bool]] = []

    async def act(ctx: Any, helpers: Any) -> None:
        for piece in ("he", "ll", "o"):
            await helpers.report_message("m", piece)
        await helpers.report_message("m", is_complete=True)
        await helpers.report_thought("t", "hm", is_complete=True)
        ctx.ack()

    turns = runner(act)
    turns.on("message", lambda event: seen.append((event.delta, event.full, event.is_complete)))
    turns.on("thought", lambda event: seen.append((event.delta, event.full, event.is_complete)))
    await turns.run()
    assert seen == [
        ("he", "he", False), ("ll", "hell", False), ("o", "hello", False), ("", "hello", True), ("hm", "hm", True),
    ]  # fmt: skip


async def test_a_report_of_a_tool_call_keeps_earlier_fields() -> None:
    seen: list[ToolCallReport] = []

    async def act(ctx: Any, helpers: Any) -> None:
        await helpers.report_tool_call("c", tool="read")
        await helpers.report_tool_call("c", args={"path": "/a"})
        await helpers.report_tool_call("c", results="text", is_error=False, is_complete=True)
        ctx.ack()

    turns = runner(act)
    turns.on("tool_call", seen.append)
    await turns.run()
    last = seen[-1]
    assert (last.tool, last.args, last.results, last.is_error, last.is_complete) == (
        "read", {"path": "/a"}, "text", False, True,
    )  # fmt: skip
    assert [event.is_complete for event in seen] == [False, False, True]


# Specification: 003.6, 003.7
@pytest.mark.parametrize("first", ["message", "thought", "tool_call"])
@pytest.mark.parametrize("second", ["message", "thought", "tool_call"])
async def test_a_completed_id_accepts_no_more_reports(first: str, second: str) -> None:
    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        await getattr(helpers, f"report_{first}")("x", is_complete=True)
        await getattr(helpers, f"report_{second}")("x")

    log, callbacks = recording()
    result = await run(act, callbacks)
    assert isinstance(result.error, ExecutorError)
    assert isinstance(result.error.__cause__, StreamSealed)
    assert log == []


async def test_an_id_is_sealed_for_the_rest_of_its_turn_only() -> None:
    refused: list[int] = []

    async def act(ctx: Any, helpers: Any) -> None:
        try:
            await helpers.report_message("m", "x", is_complete=True)
        except StreamSealed:
            refused.append(ctx.iteration)
        if ctx.iteration == 2:
            ctx.ack()

    turns = runner(act)
    await turns.run()
    await turns.run()
    assert refused == [1, 2, 1, 2]


# Specification: 003.12
async def test_reporting_stores_nothing() -> None:
    log, callbacks = recording()

    async def act(ctx: Any, helpers: Any) -> None:
        await helpers.report_message("m", "hello", is_complete=True)
        ctx.ack()

    result = await run(act, callbacks)
    assert log == []
    assert list(result.context.turn_messages) == []


# Specification: 003.13
async def test_the_audit_lists_what_was_reported_but_never_stored() -> None:
    during: list[list[Ghost]] = []

    async def act(ctx: Any, helpers: Any) -> None:
        await helpers.report_message("stored", "x", is_complete=True)
        await helpers.report_message("ghost", "x", is_complete=True)
        await helpers.report_thought("half", "x")
        await helpers.report_tool_call("call", tool="t", is_complete=True)
        await ctx.store_message(sample("message", "stored"))
        await ctx.store_tool_call(sample("tool_call", "call"))
        during.append(ctx.audit())
        ctx.ack()

    result = await run(act)
    ghosts = [Ghost("message", "ghost", True), Ghost("thought", "half", False)]
    assert during == [ghosts]
    assert result.audit() == ghosts


# Specification: 003.13
async def test_a_discarded_report_is_a_ghost() -> None:
    async def act(ctx: Any, helpers: Any) -> None:
        await helpers.report_message("m", "x", is_complete=True)
        await ctx.store_message(sample("message", "m"))
        ctx.nack(RuntimeError("no"))

    assert (await run(act)).audit() == [Ghost("message", "m", True)]


async def test_a_slow_listener_slows_the_executor() -> None:
    order: list[str] = []

    async def slow(event: MessageReport) -> None:
        await anyio.lowlevel.checkpoint()
        order.append(f"heard {event.delta}")

    async def act(ctx: Any, helpers: Any) -> None:
        for piece in "ab":
            await helpers.report_message("m", piece)
            order.append(f"reported {piece}")
        ctx.ack()

    turns = runner(act)
    turns.on("message", slow)
    await turns.run()
    assert order == ["heard a", "reported a", "heard b", "reported b"]


async def test_an_unread_stream_pauses_the_turn_once_its_buffer_is_full() -> None:
    reported: list[int] = []
    stuck = anyio.Event()

    async def act(ctx: Any, helpers: Any) -> None:
        for number in range(10):
            if number == 4:
                stuck.set()
            await helpers.report_message("m", str(number))
            reported.append(number)
        ctx.ack()

    turns = runner(act)
    names: list[str] = []
    async with turns.events(buffer=3 + 4) as events, anyio.create_task_group() as tasks:
        tasks.start_soon(turns.run)
        await stuck.wait()
        await anyio.wait_all_tasks_blocked()
        assert reported == [0, 1, 2, 3]
        async for event in events:
            names.append(event.name)
            if event.name == "turn_end":
                break
    assert reported == list(range(10))
    assert names == ["turn_start", "dispatch_start", "iteration_start", *["message"] * 10, "iteration_end",
                     "dispatch_end", "turn_end"]  # fmt: skip


async def test_a_reader_that_leaves_does_not_pause_the_turn() -> None:
    async def act(ctx: Any, helpers: Any) -> None:
        for number in range(50):
            await helpers.report_message("m", str(number))
        ctx.ack()

    turns = runner(act)
    async with anyio.create_task_group() as tasks:

        async def read_one() -> None:
            async with turns.events(buffer=0) as events:
                ready.set()
                await events.receive()

        ready = anyio.Event()
        tasks.start_soon(read_one)
        await ready.wait()
        with anyio.fail_after(30):
            assert (await turns.run()).status == "ack"


async def test_an_abort_ends_a_paused_turn() -> None:
    blocked = anyio.Event()

    async def act(ctx: Any, helpers: Any) -> None:
        contexts.append(ctx)
        blocked.set()
        for number in range(50):
            await helpers.report_message("m", str(number))

    contexts: list[Any] = []
    results: list[str] = []
    turns = runner(act)

    async def turn() -> None:
        results.append((await turns.run()).status)

    async with anyio.create_task_group() as tasks, turns.events(buffer=5) as events:
        tasks.start_soon(turn)
        await blocked.wait()
        await anyio.wait_all_tasks_blocked()
        contexts[0].abort()
        await anyio.wait_all_tasks_blocked()
        while events.statistics().current_buffer_used:
            events.receive_nowait()
            await anyio.wait_all_tasks_blocked()
    assert results == ["aborted"]


async def test_a_listener_can_be_removed_and_an_unknown_event_is_rejected() -> None:
    seen: list[Event] = []

    async def act(ctx: Any, helpers: Any) -> None:
        ctx.ack()

    turns = runner(act)
    take_off = turns.on("turn_end", seen.append)
    await turns.run()
    take_off()
    take_off()
    await turns.run()
    assert len(seen) == 1
    with pytest.raises(InvalidContent, match="turn_end"):
        turns.on("turnEnd", seen.append)


async def test_the_events_of_a_turn_are_in_order_and_name_the_turn() -> None:
    seen: list[Event] = []

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message", f"m{ctx.iteration}"))
        if ctx.iteration == 1:
            ctx.nack(RuntimeError("no"))

    turns = runner(act)
    for kind in EVENTS:
        turns.on(kind.name, seen.append)
    result = await turns.run()
    assert [event.name for event in seen] == [
        "turn_start", "dispatch_start", "iteration_start", "persisted", "iteration_end",
        "iteration_start", "iteration_end", "error", "dispatch_end", "turn_end",
    ]  # fmt: skip
    assert {event.turn_id for event in seen} == {result.turn_id}
