"""No-op callbacks and those for real stores: the conformance check, what it catches, and the owners of records."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memo import InMemoryStore
from memo.errors import Absent, Unsupported
from memo.primitives import Media, Message, Retrievable, Tokenizable
from memo.records import Merge, RecordScope
from memo.spool import BytesReader, SpooledArtifact
from memo.turn import FlushError, TurnRunner, artifact_tools, check_callbacks, noop_callbacks, store_callbacks
from memo.turn.callbacks import NOUNS, Noun
from tests.memo.primitives.samples import GOOD, artifact, picture
from tests.memo.turn.acting import recording, run, sample
from tests.memo.turn.stores import STORES, opened

pytestmark = pytest.mark.anyio


# Specification: 000.16, 000.17, 000.21, 000.28
@pytest.mark.parametrize("kind", STORES)
async def test_all_27_keep_their_promises_on_a_real_store(kind: str, tmp_path: Path) -> None:
    numbers = count()

    @asynccontextmanager
    async def make() -> AsyncIterator[dict[str, Any]]:
        place = tmp_path / str(next(numbers))
        place.mkdir()
        async with opened(kind, place) as store:
            yield store_callbacks(store)

    await check_callbacks(make)


# Specification: 000.1, 000.6
async def test_the_noop_callbacks_keep_their_promises() -> None:
    await check_callbacks(noop_callbacks, remembers=False)
    with pytest.raises(AssertionError, match="a message is fetched as it was stored"):
        await check_callbacks(noop_callbacks)


def broken(promise: str) -> Any:
    """Callbacks for a real store, with one defect."""
    base = store_callbacks(InMemoryStore())

    async def nothing(ctx: Any, value: Any) -> None: ...

    async def double(ctx: Any, value: Any) -> None:
        await base["store_message_callback"](ctx, value.model_copy(update={"id": f"{value.id}{next(numbers)}"}))

    async def backwards(ctx: Any) -> Any:
        return list(reversed(await base["fetch_messages_callback"](ctx)))

    async def at_once(ctx: Any, value: Any) -> None:
        await base["store_message_callback"](SimpleNamespace(), value)

    async def forgets_bytes(ctx: Any, id: str, data: Any) -> Any:
        return BytesReader(b"")

    numbers = count()
    wrong: dict[str, dict[str, Any]] = {
        "a tool_call is fetched as it was stored": {"store_tool_call_callback": nothing},
        "a message is fetched as it was stored": {"store_message_callback": double},
        "a mutated memory keeps its place": {"mutate_memory_callback": nothing},
        "a deleted thought is gone": {"delete_thought_callback": nothing},
        "media bytes are stored unchanged": {"store_media_bytes_callback": forgets_bytes},
        "all 27 callbacks exist with the right parameters": {"fetch_tools_callback": list},
    }
    if promise == "order":
        return {**base, "fetch_messages_callback": backwards}
    return {**base, **wrong[promise]}


@pytest.mark.parametrize(
    "promise",
    [
        "a tool_call is fetched as it was stored",
        "a message is fetched as it was stored",
        "a mutated memory keeps its place",
        "a deleted thought is gone",
        "media bytes are stored unchanged",
        "all 27 callbacks exist with the right parameters",
    ],
)
async def test_the_check_names_the_broken_promise(promise: str) -> None:
    with pytest.raises(AssertionError, match=promise):
        await check_callbacks(lambda: broken(promise))


# Specification: 000.29
async def test_each_callback_can_be_called_by_itself() -> None:
    callbacks = store_callbacks(InMemoryStore())
    fetches: dict[Noun, str] = {"message": "fetch_messages_callback", "memory": "fetch_memories_callback"}
    for noun, fetch in fetches.items():
        await callbacks[f"store_{noun}_callback"](None, sample(noun))
        assert await callbacks[fetch](None) == [sample(noun)]
        await callbacks[f"delete_{noun}_callback"](None, "one")
        assert await callbacks[fetch](None) == []


@pytest.mark.parametrize("kind", STORES)
async def test_memories_belong_to_the_user_and_the_rest_to_the_session(kind: str, tmp_path: Path) -> None:
    def whose(tenant: str, user: str, session: str) -> Any:
        return SimpleNamespace(tenant=tenant, user=user, session=session)

    async with opened(kind, tmp_path) as store:
        callbacks = store_callbacks(store)
        for noun in NOUNS:
            await callbacks[f"store_{noun}_callback"](whose("t1", "u1", "s1"), sample(noun))
        fetches = [name for name in callbacks if name.startswith(("fetch", "refresh")) and "tools" not in name]
        seen = {
            where: {name for name in fetches if await callbacks[name](whose(*where))}
            for where in (("t1", "u1", "s1"), ("t1", "u1", "s2"), ("t1", "u2", "s1"), ("t2", "u1", "s1"))
        }
        assert seen == {
            ("t1", "u1", "s1"): set(fetches),
            ("t1", "u1", "s2"): {"fetch_memories_callback"},
            ("t1", "u2", "s1"): set(fetches) - {"fetch_memories_callback"},
            ("t2", "u1", "s1"): set(),
        }


# Specification: 000.20
async def test_a_mutation_keeps_unknown_fields() -> None:
    store = InMemoryStore()
    callbacks = store_callbacks(store)
    await callbacks["store_message_callback"](None, sample("message"))
    key = RecordScope.of("local", "turn.message", "session:local").key("one")
    await store.apply_records([Merge(key, {"rating": 5})])
    await callbacks["mutate_message_callback"](None, sample("message", "one", "changed"))
    record = await store.read_record(key)
    assert record is not None
    assert (record.value["rating"], record.value["content"]) == (5, "changed")


# Specification: 000.23, 000.24
@pytest.mark.parametrize("kind", STORES)
async def test_stored_bytes_are_found_by_the_primitive_that_names_them(kind: str, tmp_path: Path) -> None:
    async def act(ctx: Any, helpers: Any) -> None:
        picture_reader = await ctx.store_media_bytes("drawn", b"\x89PNG" * 100_000)
        media = Media.tool_generated(
            id="drawn", reader=picture_reader, kind="image", mime_type="image/png", filename="a.png",
            trust_tier="first-party", modality_hazard="opaque-perceptual",
        )  # fmt: skip
        page = await ctx.store_retrievable_bytes("page", "line one\nline two\n")
        await ctx.store_message(Message(**GOOD[Message] | {"attachments": [media]}))
        await ctx.store_retrievable(Retrievable(**GOOD[Retrievable] | {"content": SpooledArtifact(page)}))
        ctx.ack()

    async with opened(kind, tmp_path) as store:
        result = await run(act, store_callbacks(store))
        assert result.error is None
    if kind == "memory":
        return
    async with opened(kind, tmp_path) as store:  # as another process would open it
        callbacks = store_callbacks(store)
        (message,) = await callbacks["fetch_messages_callback"](None)
        assert await message.attachments[0].as_bytes() == b"\x89PNG" * 100_000
        (retrievable,) = await callbacks["fetch_retrievables_callback"](None)
        assert await retrievable.content.reader.line(1) == "line two"


# Specification: 000.23
async def test_bytes_already_in_the_store_are_not_written_again() -> None:
    class Counting(InMemoryStore):
        chunks = 0

        async def apply_records(self, changes: Any) -> Any:
            self.chunks += sum(change.key.scope.kind == "spool.chunk" for change in changes)
            return await super().apply_records(changes)

    store = Counting()
    callbacks = store_callbacks(store)
    reader = await callbacks["store_media_bytes_callback"](None, "pic", b"bytes")
    message = Message(**GOOD[Message] | {"attachments": [Media(**GOOD[Media] | {"reader": reader})]})
    await callbacks["store_message_callback"](None, message)
    (fetched,) = await callbacks["fetch_messages_callback"](None)
    await callbacks["mutate_message_callback"](None, fetched)
    assert store.chunks == 1


async def test_bytes_that_were_never_stored_are_absent_not_empty() -> None:
    store = InMemoryStore()
    callbacks = store_callbacks(store)
    value = Message(**GOOD[Message] | {"attachments": [picture()]}).to_json()
    key = RecordScope.of("local", "turn.message", "session:local").key("m")
    await store.apply_records([Merge(key, value, create=True)])
    (message,) = await callbacks["fetch_messages_callback"](None)
    with pytest.raises(Absent, match="pic"):
        await message.attachments[0].as_bytes()


def test_a_store_without_records_is_rejected_at_once() -> None:
    with pytest.raises(Unsupported, match="object"):
        store_callbacks(object())


# Specification: 002.28
async def test_artifact_tools_give_bounded_answers_and_are_never_offered_for_them() -> None:
    log = SpooledArtifact(BytesReader(b"".join(b"line %d\n" % n for n in range(5000))), "log")
    data = SpooledArtifact(BytesReader(b'{"items": [{"id": 1}, {"id": 2}]}'), "data")
    calls = [
        sample("tool_call", "c1").model_copy(update={"results": log}),
        sample("tool_call", "c2").model_copy(update={"results": data}),
        sample("tool_call", "c3"),
        sample("tool_call", "c4").model_copy(update={"from_artifact_tool": True}),
    ]
    tools = {tool.name: tool for tool in artifact_tools(calls)}
    assert set(tools) == {
        "artifact_head", "artifact_tail", "artifact_range", "artifact_grep", "artifact_line_count",
        "artifact_json_path",
    }  # fmt: skip
    assert all(tool.parameters["properties"]["call_id"]["enum"] == ["c1", "c2"] for tool in tools.values())

    async def ask(name: str, **args: Any) -> str:
        answer = await tools[name].handler(None, args)
        assert isinstance(answer, Tokenizable)
        return str(answer)

    assert await ask("artifact_head", call_id="c1", lines=2) == "line 0\nline 1"
    assert await ask("artifact_tail", call_id="c1", lines=1) == "line 4999"
    assert await ask("artifact_range", call_id="c1", start=10, end=12) == "line 10\nline 11"
    assert await ask("artifact_grep", call_id="c1", pattern="line 499[89]") == "4999:line 4998\n5000:line 4999"
    assert await ask("artifact_line_count", call_id="c1") == "5000"
    assert await ask("artifact_json_path", call_id="c2", path="$.items[*].id") == "1\n2"
    everything = await ask("artifact_range", call_id="c1", start=0, end=5000)
    assert len(everything) < 40_000
    for wrong in ({"call_id": "c3"}, {"call_id": "c1", "lines": -1}, {}):
        with pytest.raises(Exception, match="cannot"):
            await ask("artifact_head", **wrong)
    assert artifact_tools([sample("tool_call")]) == []


async def test_each_artifact_of_a_result_is_offered() -> None:
    call = sample("tool_call").model_copy(update={"results": (artifact("a"), artifact("b"))})
    assert artifact_tools([call])[0].parameters["properties"]["call_id"]["enum"] == ["one#0", "one#1"]


# Specification: 000.10
async def test_tools_given_to_the_adapter_are_fetched() -> None:
    tools = artifact_tools([sample("tool_call").model_copy(update={"results": artifact()})])
    callbacks = store_callbacks(InMemoryStore(), tools=tools)
    assert await callbacks["fetch_tools_callback"](None) == tools

    async def act(ctx: Any, helpers: Any) -> None:
        for tool in await ctx.fetch_tools():
            ctx.tools.add(tool)
        assert "artifact_head" in ctx.tools
        with pytest.raises(Absent):
            ctx.tools.get("no_such_tool")
        ctx.ack()

    assert (await TurnRunner(executor_callback=act, **callbacks).run()).status == "ack"


# Specification: 000.18
@pytest.mark.parametrize("kind", STORES)
async def test_an_instruction_is_changed_in_its_place_also_after_being_stored_in_the_same_iteration(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as store:
        callbacks = store_callbacks(store)

        async def first(ctx: Any, helpers: Any) -> None:
            for text in ("be brief", "use metric units", "speak English"):
                await ctx.store_standing_instruction(text)
            await ctx.mutate_standing_instruction("be very brief", replaces="be brief")
            await ctx.mutate_standing_instruction(Tokenizable("be silent"), replaces=Tokenizable("be very brief"))
            assert list(ctx.standing_instructions) == ["be silent", "use metric units", "speak English"]
            ctx.ack()

        async def second(ctx: Any, helpers: Any) -> None:
            await ctx.store_standing_instruction("be brief")  # its first record now has another text
            await ctx.mutate_standing_instruction("speak English", replaces="use metric units")  # exists already
            await ctx.mutate_standing_instruction("be silent")  # its own text: nothing to change
            ctx.ack()

        assert (await run(first, callbacks)).status == "ack"
        assert (await run(second, callbacks)).status == "ack"
        assert await callbacks["refresh_standing_instructions_callback"](None) == [
            "be silent", "speak English", "be brief",
        ]  # fmt: skip


# Specification: 000.19
async def test_a_mutation_of_what_was_never_stored_is_an_error_that_stores_nothing() -> None:
    callbacks = store_callbacks(InMemoryStore())
    for noun in NOUNS:
        with pytest.raises(Absent, match="cannot"):
            await callbacks[f"mutate_{noun}_callback"](None, sample(noun))

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_message(sample("message", "beside"))
        await ctx.mutate_standing_instruction("shout", replaces="whisper")
        ctx.ack()

    result = await run(act, callbacks)
    assert isinstance(result.error, FlushError)
    assert isinstance(result.error.__cause__, Absent)
    assert "whisper" not in str(result.error), "an error never repeats text"
    assert not result.error.outcome_unknown
    assert await callbacks["fetch_messages_callback"](None) == []


# Specification: 000.19
async def test_with_upsert_a_mutation_stores_what_was_never_stored() -> None:
    await check_callbacks(lambda: store_callbacks(InMemoryStore(), upsert=True), upsert=True)
    callbacks = store_callbacks(InMemoryStore(), upsert=True)
    for noun in NOUNS:
        await callbacks[f"mutate_{noun}_callback"](None, sample(noun))
    assert await callbacks["fetch_memories_callback"](None) == [sample("memory")]
    assert await callbacks["refresh_standing_instructions_callback"](None) == [sample("standing_instruction")]
    with pytest.raises(AssertionError, match="a mutation of an absent message is an error"):
        await check_callbacks(lambda: store_callbacks(InMemoryStore(), upsert=True))


# Specification: 000.18
async def test_own_callbacks_get_a_replacement_as_its_new_text() -> None:
    log, callbacks = recording()

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.mutate_standing_instruction("be silent", replaces="be brief")
        ctx.ack()

    await run(act, callbacks)
    ((name, value),) = log
    assert (name, value, value.replaces) == ("mutate_standing_instruction_callback", "be silent", "be brief")
