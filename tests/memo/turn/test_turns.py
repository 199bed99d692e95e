"""A turn from the outside: the order of calls, what ends it, and what is reported."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from memo import InMemoryStore
from memo.errors import InvalidContent
from memo.primitives import Tokenizable
from memo.turn import (
    AbortSignal,
    AlreadySignalled,
    ExecutorError,
    InvalidTurnContext,
    IterationLimit,
    PipelineError,
    Tool,
    noop_callbacks,
    store_callbacks,
)
from memo.turn.callbacks import FETCH_CALLBACKS
from tests.memo.turn.acting import recording, run, runner, sample

pytestmark = pytest.mark.anyio


# Specification: 000.8, 002.29
async def test_a_turn_starts_with_only_what_it_was_given() -> None:
    seen: dict[str, Any] = {}

    async def act(ctx: Any, helpers: Any) -> None:
        names = ("messages", "memories", "thoughts", "tool_calls", "retrievables")
        seen.update({name: list(getattr(ctx, f"turn_{name}")) for name in names})
        seen["standing"] = [str(i) for i in ctx.standing_instructions]
        seen["prompt"], seen["tools"] = str(ctx.system_prompt), [tool.name for tool in ctx.tools]
        ctx.ack()

    async def look(ctx: Any, args: Any) -> str:
        return ""

    store = InMemoryStore()
    callbacks = store_callbacks(store)
    await callbacks["store_message_callback"](None, sample("message"))
    await runner(act, callbacks, tools=[Tool("look", "Look.", look)]).run(
        system_prompt="be kind", standing_instructions=["one", Tokenizable("two")]
    )
    assert seen == {
        "messages": [], "memories": [], "thoughts": [], "tool_calls": [], "retrievables": [],
        "standing": ["one", "two"], "prompt": "be kind", "tools": ["look"],
    }  # fmt: skip


# Specification: 000.7
async def test_nothing_is_fetched_until_requested() -> None:
    fetched: list[str] = []

    def watcher(name: str) -> Any:
        def fetch(ctx: Any) -> list[Any]:
            fetched.append(name)
            return []

        return fetch

    callbacks = {**noop_callbacks(), **{name: watcher(name) for name in FETCH_CALLBACKS}}

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        ctx.ack()

    await run(act, callbacks)
    assert fetched == []

    async def asking(ctx: Any, helpers: Any) -> None:
        await ctx.fetch_messages()
        await ctx.refresh_standing_instructions()
        await ctx.fetch_tools()
        ctx.ack()

    await run(asking, callbacks)
    assert fetched == ["fetch_messages_callback", "refresh_standing_instructions_callback", "fetch_tools_callback"]


# Specification: 000.9, 003.11
async def test_fetched_items_are_in_scope_only_once_added() -> None:
    callbacks = store_callbacks(InMemoryStore())
    await callbacks["store_message_callback"](None, sample("message"))
    seen: list[list[Any]] = []

    async def load(ctx: Any, next: Any) -> None:
        for message in await ctx.fetch_messages():
            ctx.turn_messages.add(message)
        await next()

    async def act(ctx: Any, helpers: Any) -> None:
        seen.append(list(ctx.turn_messages))
        ctx.ack()

    await run(act, callbacks)
    await run(act, callbacks, turn_input_pipeline=[load])
    assert seen == [[], [sample("message")]]


# Specification: 000.11
async def test_a_turn_context_writes_through_at_once() -> None:
    log, callbacks = recording()
    seen: list[int] = []

    async def middleware(ctx: Any, next: Any) -> None:
        await ctx.store_message(sample("message"))
        seen.append(len(log))
        await next()

    async def act(ctx: Any, helpers: Any) -> None:
        assert sample("message") in ctx.turn_messages
        ctx.ack()

    result = await run(act, callbacks, turn_input_pipeline=[middleware])
    assert (result.status, seen) == ("ack", [1])


async def test_pipelines_run_around_the_executor_in_order() -> None:
    order: list[str] = []

    def step(name: str) -> Any:
        async def middleware(ctx: Any, next: Any) -> None:
            order.append(f"{name}>")
            await next()
            order.append(f"<{name}")

        return middleware

    async def act(ctx: Any, helpers: Any) -> None:
        order.append(f"execute {ctx.iteration}")
        if ctx.iteration == 1:
            ctx.ack()

    await run(
        act,
        turn_input_pipeline=[step("a"), step("b")],
        dispatch_input_pipeline=[step("c")],
        dispatch_output_pipeline=[step("d")],
        turn_output_pipeline=[step("e")],
    )
    around = ["c>", "<c", "execute 0", "d>", "<d", "c>", "<c", "execute 1", "d>", "<d"]
    assert order == ["a>", "b>", "<b", "<a", *around, "e>", "<e"]


async def test_a_middleware_that_does_not_call_next_ends_only_its_pipeline() -> None:
    reached: list[str] = []

    async def stops(ctx: Any, next: Any) -> None:
        reached.append("stops")

    async def never(ctx: Any, next: Any) -> None:
        reached.append("never")

    async def act(ctx: Any, helpers: Any) -> None:
        reached.append("act")
        ctx.ack()

    await run(act, turn_input_pipeline=[stops, never])
    assert reached == ["stops", "act"]


# Specification: 003.9, 003.10
async def test_an_exception_is_wrapped_and_a_nack_is_reported_unchanged() -> None:
    reported: list[BaseException] = []
    boom = ValueError("boom")

    async def raises(ctx: Any, helpers: Any) -> None:
        raise boom

    async def nacks(ctx: Any, helpers: Any) -> None:
        ctx.nack(boom)

    for act in (raises, nacks):
        turns = runner(act)
        turns.on("error", lambda event: reported.append(event.error))
        result = await turns.run()
        assert (result.status, result.error) == ("nack", reported[-1])
    wrapped, plain = reported
    assert isinstance(wrapped, ExecutorError)
    assert wrapped.code == "E_LLM_EXECUTION_EXECUTOR_ERROR"
    assert wrapped.__cause__ is boom
    assert plain is boom


@pytest.mark.parametrize(
    "place", ["turn_input_pipeline", "dispatch_input_pipeline", "dispatch_output_pipeline", "turn_output_pipeline"]
)
async def test_a_middleware_that_raises_ends_the_turn_and_run_returns(place: str) -> None:
    async def raises(ctx: Any, next: Any) -> None:
        raise KeyError("lost")

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        ctx.ack()

    log, callbacks = recording()
    result = await run(act, callbacks, **{place: [raises]})
    assert result.status == "nack"
    assert isinstance(result.error, PipelineError)
    assert isinstance(result.error.__cause__, KeyError)
    assert len(log) == (1 if place == "turn_output_pipeline" else 0)


async def test_a_dispatch_can_be_signalled_only_once() -> None:
    refused: list[str] = []

    async def act(ctx: Any, helpers: Any) -> None:
        ctx.ack()
        for again in (ctx.ack, lambda: ctx.nack(ValueError())):
            with pytest.raises(AlreadySignalled) as caught:
                again()
            refused.append(caught.value.code)

    assert (await run(act)).status == "ack"
    assert refused == ["E_LLM_EXECUTION_ALREADY_SIGNALLED"] * 2


async def test_iterations_continue_up_to_the_limit_and_keep_their_changes() -> None:
    log, callbacks = recording()

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message", f"m{ctx.iteration}"))

    result = await run(act, callbacks, max_iterations=3)
    assert (result.status, result.iterations, len(log)) == ("nack", 3, 3)
    assert isinstance(result.error, IterationLimit)


# Specification: 003.11
async def test_a_later_iteration_sees_what_an_earlier_one_stored() -> None:
    seen: list[list[str]] = []

    async def act(ctx: Any, helpers: Any) -> None:
        seen.append([message.id for message in ctx.turn_messages])
        await ctx.store_message(sample("message", f"m{ctx.iteration}"))
        if ctx.iteration == 2:
            ctx.ack()

    result = await run(act)
    assert seen == [[], ["m0"], ["m0", "m1"]]
    assert [message.id for message in result.context.turn_messages] == ["m0", "m1", "m2"]


# Specification: 003.8
async def test_an_abort_from_outside_stops_a_waiting_executor() -> None:
    signal = AbortSignal()
    log, callbacks = recording()
    waiting = anyio.Event()
    seen: list[str] = []

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        waiting.set()
        try:
            await anyio.sleep_forever()
        finally:
            seen.append("cleaned up")

    async def stop() -> None:
        await waiting.wait()
        signal.abort("enough")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop)
        turns = runner(act, callbacks)
        errors: list[Any] = []
        turns.on("error", errors.append)
        result = await turns.run(abort_signal=signal)
    assert (result.status, result.error, errors, log, seen) == ("aborted", None, [], [], ["cleaned up"])
    assert signal.reason == "enough"


# Specification: 003.8
async def test_an_executor_can_wait_for_an_abort() -> None:
    heard: list[str] = []

    async def act(ctx: Any, helpers: Any) -> None:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen, ctx.abort_signal)
                ctx.abort("stop")

    async def listen(signal: AbortSignal) -> None:
        await signal.wait()
        heard.append(str(signal.reason))

    assert (await run(act)).status == "aborted"
    assert heard == ["stop"]


async def test_a_turn_aborted_before_it_starts_runs_nothing() -> None:
    signal = AbortSignal()
    signal.abort()
    ran: list[str] = []

    async def act(ctx: Any, helpers: Any) -> None:
        ran.append("act")

    async def late(ctx: Any, next: Any) -> None:
        ran.append("late")

    turns = runner(act, turn_input_pipeline=[late], turn_output_pipeline=[late])
    assert (await turns.run(abort_signal=signal)).status == "aborted"
    assert ran == []


async def test_an_abort_between_iterations_prevents_the_next() -> None:
    ran: list[int] = []
    signal = AbortSignal()

    async def act(ctx: Any, helpers: Any) -> None:
        ran.append(ctx.iteration)
        await ctx.store_message(sample("message"))

    log, callbacks = recording()
    turns = runner(act, callbacks)
    turns.on("iteration_end", lambda event: signal.abort())
    result = await turns.run(abort_signal=signal)
    assert (result.status, result.iterations, ran, len(log)) == ("aborted", 1, [0], 1)


# Specification: 000.22
async def test_bytes_are_stored_at_once_and_appear_in_no_set_or_event() -> None:
    persisted: list[Any] = []

    async def act(ctx: Any, helpers: Any) -> None:
        reader = await ctx.store_media_bytes("pic", b"bytes")
        page = await ctx.store_retrievable_bytes("page", b"text")
        assert b"".join([block async for block in reader.stream()]) == b"bytes"
        assert await page.read_all() == b"text"
        assert (len(ctx.pending), len(ctx.turn_messages), len(ctx.turn_retrievables)) == (0, 0, 0)
        ctx.nack(RuntimeError("bytes are not a change, so this discards none"))

    callbacks = store_callbacks(InMemoryStore())
    turns = runner(act, callbacks)
    turns.on("persisted", persisted.append)
    await turns.run()
    assert persisted == []
    assert (
        await callbacks["fetch_messages_callback"](None) == await callbacks["fetch_retrievables_callback"](None) == []
    )


@pytest.mark.parametrize(
    "name", ["system_prompt", "turn_messages", "turn_tool_calls", "standing_instructions", "tenant"]
)
async def test_the_sets_of_a_context_cannot_be_replaced(name: str) -> None:
    async def act(ctx: Any, helpers: Any) -> None:
        with pytest.raises(AttributeError):
            setattr(ctx, name, "another")
        ctx.stash["seen"] = True
        ctx.ack()

    result = await run(act)
    assert (result.status, result.context.stash) == ("ack", {"seen": True})


# Specification: 000.14, 000.15
async def test_a_mutation_is_explicit_and_passes_its_value_unchanged() -> None:
    log, callbacks = recording()
    call = sample("tool_call", "c", "done")

    async def act(ctx: Any, helpers: Any) -> None:
        if ctx.iteration == 0:
            await ctx.store_tool_call(sample("tool_call", "c"))
            await helpers.report_tool_call("c", tool="look", is_complete=True)
        else:
            await ctx.mutate_tool_call(call)
            ctx.ack()

    await run(act, callbacks)
    assert [name for name, _ in log] == ["store_tool_call_callback", "mutate_tool_call_callback"]
    assert log[1][1] is call


async def test_a_turn_whose_executor_aborts_and_returns_is_aborted() -> None:
    log, callbacks = recording()

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        ctx.ack()
        ctx.abort()

    assert (await run(act, callbacks)).status == "aborted"
    assert log == []


async def test_cancelling_the_task_cancels_the_turn_and_stores_nothing() -> None:
    log, callbacks = recording()

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        scope.cancel()
        await anyio.sleep_forever()

    with anyio.CancelScope() as scope:
        await run(act, callbacks)
    assert scope.cancelled_caught
    assert log == []


# Specification: 003.3
async def test_a_dispatch_can_run_without_the_stages_of_a_turn() -> None:
    log, callbacks = recording()
    names: list[str] = []

    async def never(ctx: Any, next: Any) -> None:
        names.append("pipeline")

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        ctx.ack()

    turns = runner(act, callbacks, turn_input_pipeline=[never])
    turns.on("turn_start", lambda event: names.append("turn"))
    result = await turns.dispatch()
    assert (result.status, names, [name for name, _ in log]) == ("ack", [], ["store_message_callback"])


@pytest.mark.parametrize(
    "fields",
    [{"system_prompt": 5}, {"mood": "good"}, {"tenant": "../x"}, {"session": ""}, {"standing_instructions": [None]}],
)
async def test_an_invalid_turn_is_rejected_before_it_starts(fields: dict[str, Any]) -> None:
    async def act(ctx: Any, helpers: Any) -> None:
        raise AssertionError

    with pytest.raises(InvalidTurnContext, match="cannot run a turn"):
        await runner(act).run(fields)


async def test_only_primitives_can_be_stored() -> None:
    async def act(ctx: Any, helpers: Any) -> None:
        for wrong in (ctx.store_message({"id": "m"}), ctx.store_memory(sample("message")), ctx.delete_message(7)):
            with pytest.raises(InvalidContent):
                await wrong
        ctx.ack()

    assert (await run(act)).status == "ack"


async def test_concurrent_turns_of_one_runner_do_not_mix() -> None:
    callbacks = store_callbacks(InMemoryStore())

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message", ctx.session))
        await anyio.lowlevel.checkpoint()
        if ctx.iteration == 2:
            assert [m.id for m in ctx.turn_messages] == [ctx.session]
            ctx.ack()

    turns = runner(act, callbacks)
    results: list[str] = []

    async def one(session: str) -> None:
        results.append((await turns.run(session=session)).status)

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(one, f"s{number}")
    assert results == ["ack"] * 10


async def test_equal_tool_calls_can_be_counted() -> None:
    counts: list[int] = []

    async def act(ctx: Any, helpers: Any) -> None:
        call = sample("tool_call", f"c{ctx.iteration}")
        counts.append(ctx.tool_call_count(call.checksum))
        await ctx.store_tool_call(call)
        if ctx.iteration == 2:
            ctx.ack()

    await run(act)
    assert counts == [0, 1, 2]
