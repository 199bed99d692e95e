"""Queued changes: visible at once to their iteration, and stored at its end, in order and atomically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from memo import InMemoryStore
from memo.errors import Unavailable
from memo.records import RecordChange, RecordScope
from memo.turn import FlushError, noop_callbacks, store_callbacks
from memo.turn.callbacks import NOUNS
from tests.memo.turn.acting import recording, run, runner, sample
from tests.memo.turn.stores import STORES, opened

pytestmark = pytest.mark.anyio


class CountingStore(InMemoryStore):
    """A real store that counts its batches and fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.failure: Exception | None = None

    async def apply_records(self, changes: Any) -> Any:
        self.batches.append(len(changes))
        if self.failure is not None:
            raise self.failure
        return await super().apply_records(changes)


# Specification: 000.12
async def test_a_change_is_visible_at_once_but_only_in_its_iteration() -> None:
    log, callbacks = recording()

    async def act(ctx: Any, helpers: Any) -> None:
        for noun in NOUNS:
            await getattr(ctx, f"store_{noun}")(sample(noun))
        assert all(len(ctx._sets.of(noun)) == 1 for noun in NOUNS)
        await ctx.mutate_message(sample("message", "one", "changed"))
        assert [str(m.content) for m in ctx.turn_messages] == ["changed"]
        await ctx.delete_message("one")
        assert len(ctx.turn_messages) == 0
        assert (len(ctx.pending), log) == (8, [])
        ctx.ack()

    assert (await run(act, callbacks)).status == "ack"
    assert len(log) == 8


# Specification: 003.1
async def test_changes_reach_the_callbacks_in_the_order_they_were_made() -> None:
    log, callbacks = recording()

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        await ctx.store_thought(sample("thought"))
        await ctx.mutate_message(sample("message", "one", "changed"))
        await ctx.delete_thought("one")
        await ctx.store_standing_instruction("be kind")
        await ctx.delete_standing_instruction("be kind")
        ctx.ack()

    await run(act, callbacks)
    assert [name for name, _ in log] == [
        "store_message_callback",
        "store_thought_callback",
        "mutate_message_callback",
        "delete_thought_callback",
        "store_standing_instruction_callback",
        "delete_standing_instruction_callback",
    ]
    assert log[3][1] == "one"
    assert log[5][1] == "be kind"
    assert log[2][1] == sample("message", "one", "changed")


# Specification: 000.13, 003.2, 003.5
async def test_a_flush_is_one_transaction_and_comes_before_the_end_of_its_iteration() -> None:
    store = CountingStore()
    seen: list[tuple[int, int | None, list[int]]] = []

    async def act(ctx: Any, helpers: Any) -> None:
        for noun in NOUNS:
            await getattr(ctx, f"store_{noun}")(sample(noun, f"x{ctx.iteration}"))
        if ctx.iteration == 1:
            ctx.ack()

    turns = runner(act, store_callbacks(store))
    turns.on("iteration_end", lambda event: seen.append((event.iteration, event.stored, list(store.batches))))
    await turns.run()
    assert seen == [(0, 6, [6]), (1, 6, [6, 6])]


# Specification: 003.4
@pytest.mark.parametrize("ending", ["nack", "abort", "raise"])
@pytest.mark.parametrize("kind", STORES)
async def test_a_failed_iteration_stores_nothing_and_earlier_ones_are_kept(
    kind: str, ending: str, tmp_path: Path
) -> None:
    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message", f"m{ctx.iteration}"))
        if ctx.iteration == 1:
            await ctx.delete_message("m0")
            if ending == "nack":
                ctx.nack(RuntimeError("no"))
            elif ending == "abort":
                ctx.abort()
            else:
                raise RuntimeError("no")

    async with opened(kind, tmp_path) as store:
        callbacks = store_callbacks(store)
        ends: list[int | None] = []
        turns = runner(act, callbacks)
        turns.on("iteration_end", lambda event: ends.append(event.stored))
        result = await turns.run()
        assert [m.id for m in await callbacks["fetch_messages_callback"](result.context)] == ["m0"]
        assert [m.id for m in result.context.turn_messages] == ["m0"]
        assert ends == [1, None]


async def test_a_failed_flush_ends_the_turn_and_stores_nothing() -> None:
    store = CountingStore()
    store.failure = Unavailable("cannot use this store: it is down")

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        ctx.ack()

    result = await run(act, store_callbacks(store))
    assert result.status == "nack"
    assert isinstance(result.error, FlushError)
    assert result.error.__cause__ is store.failure
    assert not result.error.outcome_unknown
    assert list(result.context.turn_messages) == []
    assert await store.list_records(RecordScope.of("local", "turn.message", "session:local")) == []


async def test_a_callback_that_fails_during_a_flush_discards_all_changes() -> None:
    store = InMemoryStore()

    async def fails(ctx: Any, value: Any) -> None:
        raise OSError("disk")

    callbacks = {**store_callbacks(store), "store_thought_callback": fails}

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        await ctx.store_thought(sample("thought"))
        await ctx.store_memory(sample("memory"))
        ctx.ack()

    result = await run(act, callbacks)
    assert isinstance(result.error, FlushError)
    assert await callbacks["fetch_messages_callback"](None) == []
    assert await callbacks["fetch_memories_callback"](None) == []


async def test_a_flush_that_times_out_has_an_unknown_outcome() -> None:
    class Silent(InMemoryStore):
        async def apply_records(self, changes: Any) -> Any:
            await anyio.sleep_forever()

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        ctx.ack()

    result = await run(act, store_callbacks(Silent()), flush_timeout_s=0.05)
    assert isinstance(result.error, FlushError)
    assert result.error.outcome_unknown


async def test_a_timeout_inside_a_callback_is_not_a_timeout_of_the_flush() -> None:
    async def late(ctx: Any, value: Any) -> None:
        raise TimeoutError("the database took too long")

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        ctx.ack()

    result = await run(act, {**noop_callbacks(), "store_message_callback": late})
    assert isinstance(result.error, FlushError)
    assert "the database took too long" in str(result.error)


async def test_a_flush_finishes_despite_an_abort() -> None:
    class Slow(InMemoryStore):
        async def apply_records(self, changes: Any) -> Any:
            contexts[0].abort("now")
            await anyio.lowlevel.checkpoint()
            return await super().apply_records(changes)

    contexts: list[Any] = []
    store = Slow()
    callbacks = store_callbacks(store)

    async def act(ctx: Any, helpers: Any) -> None:
        contexts.append(ctx)
        await ctx.store_message(sample("message"))
        ctx.ack()

    result = await run(act, callbacks)
    assert result.status in ("ack", "aborted")
    assert [m.id for m in await callbacks["fetch_messages_callback"](None)] == ["one"]
    assert [m.id for m in result.context.turn_messages] == ["one"]


async def test_a_write_through_the_turn_during_a_flush_is_stored_at_once() -> None:
    store = InMemoryStore()
    base = store_callbacks(store)
    turns: list[Any] = []

    async def slow_store(ctx: Any, value: Any) -> None:
        await base["store_message_callback"](ctx, value)
        if value.id == "queued":
            await turns[0].store_message(sample("message", "direct"))
            assert [m.id for m in await base["fetch_messages_callback"](None)] == ["direct"]

    async def remember(ctx: Any, next: Any) -> None:
        turns.append(ctx)
        await next()

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message", "queued"))
        ctx.ack()

    callbacks = {**base, "store_message_callback": slow_store}
    assert (await run(act, callbacks, turn_input_pipeline=[remember])).status == "ack"
    assert [m.id for m in await base["fetch_messages_callback"](None)] == ["direct", "queued"]


async def test_an_iteration_without_changes_does_not_touch_the_store() -> None:
    store = CountingStore()

    async def act(ctx: Any, helpers: Any) -> None:
        ctx.ack()

    await run(act, store_callbacks(store))
    assert store.batches == []


async def test_callbacks_may_be_sync_functions() -> None:
    kept: list[Any] = []
    callbacks = {**noop_callbacks(), "store_message_callback": lambda ctx, value: kept.append(value)}

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        ctx.ack()

    await run(act, callbacks)
    assert kept == [sample("message")]


async def test_every_stored_change_is_announced() -> None:
    seen: list[tuple[str, str, str]] = []

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message"))
        await ctx.delete_message("one")
        if ctx.iteration == 0:
            ctx.ack()

    turns = runner(act)
    turns.on("persisted", lambda event: seen.append((event.verb, event.noun, event.id)))
    await turns.run()
    assert seen == [("store", "message", "one"), ("delete", "message", "one")]


def test_a_record_change_is_one_of_three_kinds() -> None:
    assert {kind.__name__ for kind in RecordChange.__args__} == {"Put", "Merge", "Delete"}
