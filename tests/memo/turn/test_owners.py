"""I7 in the library: callbacks bound to an owner serve that owner only, in every verb."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from memo import InMemoryStore
from memo.errors import Absent, InvalidKey
from memo.spool import ByteStore
from memo.steps import store_handlers
from memo.turn import ForeignOwner, Tool, check_callbacks, store_callbacks
from memo.turn.callbacks import NOUNS, PARAMETERS
from tests.memo.turn.acting import run, runner, sample

pytestmark = pytest.mark.anyio

ADA: dict[str, Any] = {"tenant": "acme", "user": "ada", "session": "s1"}
FOREIGN: list[dict[str, Any]] = [
    {"tenant": "evil", "user": "bob", "session": "s9"},
    {**ADA, "tenant": "evil"},
    {**ADA, "user": "bob"},
    {**ADA, "session": "s2"},
    {**ADA, "tenant": "local"},  # given explicitly, so not the default
]
SAMPLES: dict[str, tuple[Any, ...]] = {
    **{f"{verb}_{noun}_callback": (sample(noun),) for noun in NOUNS for verb in ("store", "mutate")},
    **{f"delete_{noun}_callback": ("one",) for noun in NOUNS},
    "delete_standing_instruction_callback": (sample("standing_instruction"),),
    "store_media_bytes_callback": ("pic", b"bytes"),
    "store_retrievable_bytes_callback": ("page", b"bytes"),
}


class Watched(InMemoryStore):
    """A store that counts the calls to its records."""

    asked = 0

    async def apply_records(self, changes: Any) -> Any:
        self.asked += 1
        return await super().apply_records(changes)

    async def list_records(self, *args: Any, **named: Any) -> Any:
        self.asked += 1
        return await super().list_records(*args, **named)

    async def read_record(self, *args: Any, **named: Any) -> Any:
        self.asked += 1
        return await super().read_record(*args, **named)


async def look(ctx: Any, args: Any) -> str:
    return ""


@pytest.mark.parametrize("name", PARAMETERS)
async def test_another_owner_is_rejected_before_the_store_is_called(name: str) -> None:
    store = Watched()
    callback = store_callbacks(store, **ADA, tools=[Tool("look", "Look.", look)])[name]
    for owner in FOREIGN:
        with pytest.raises(ForeignOwner, match="bound to another") as refused:
            await callback(SimpleNamespace(**owner), *SAMPLES.get(name, ()))
        assert not set(ADA.values()) & set(str(refused.value).split())  # the error does not reveal the owner
    assert store.asked == 0
    for ctx in (SimpleNamespace(**ADA), SimpleNamespace(), None):
        if name.startswith("mutate"):
            with pytest.raises(Absent):
                await callback(ctx, *SAMPLES[name])
        else:
            await callback(ctx, *SAMPLES.get(name, ()))


async def test_a_turn_without_an_owner_is_served_as_the_bound_owner() -> None:
    """If it were served as `local`, every owner of a store would share one memory."""
    store = InMemoryStore()
    found: dict[str, list[Any]] = {}

    async def remember(ctx: Any, helpers: Any) -> None:
        await ctx.store_memory(sample("memory"))
        await ctx.store_message(sample("message"))
        await ctx.store_media_bytes("pic", b"bytes")
        ctx.ack()

    async def recall(ctx: Any, helpers: Any) -> None:
        found["memories"] = await ctx.fetch_memories()
        found["messages"] = await ctx.fetch_messages()
        ctx.ack()

    ada = store_callbacks(store, **ADA)
    assert (await run(remember, ada)).status == "ack"
    await run(recall, store_callbacks(store, tenant="evil", user="bob", session="s9"))
    assert found == {"memories": [], "messages": []}
    await run(recall, store_callbacks(store))
    assert found == {"memories": [], "messages": []}
    await run(recall, ada)
    assert found == {"memories": [sample("memory")], "messages": [sample("message")]}
    await runner(recall, store_callbacks(store)).run(**ADA)
    assert found == {"memories": [sample("memory")], "messages": [sample("message")]}


@pytest.mark.parametrize("owner", FOREIGN)
async def test_a_turn_of_another_owner_fails_and_changes_nothing(owner: dict[str, str]) -> None:
    store = InMemoryStore()

    async def act(ctx: Any, helpers: Any) -> None:
        await ctx.store_memory(sample("memory"))
        ctx.ack()

    async def spy(ctx: Any, helpers: Any) -> None:
        await ctx.fetch_memories()
        ctx.ack()

    callbacks = store_callbacks(store, **ADA)
    for executor in (act, spy):
        result = await runner(executor, callbacks).run(**owner)
        assert result.status == "nack"
        assert isinstance(result.error, Exception)
        assert isinstance(result.error.__cause__, ForeignOwner)
    assert await callbacks["fetch_memories_callback"](None) == []


async def test_an_unbound_id_is_taken_from_the_context() -> None:
    callbacks = store_callbacks(InMemoryStore(), tenant="acme")
    await callbacks["store_message_callback"](SimpleNamespace(session="s1"), sample("message"))
    assert await callbacks["fetch_messages_callback"](SimpleNamespace(tenant="acme", session="s1"))
    assert not await callbacks["fetch_messages_callback"](SimpleNamespace(session="s2"))
    with pytest.raises(ForeignOwner):
        await callbacks["fetch_messages_callback"](SimpleNamespace(tenant="evil", session="s1"))


async def test_an_owner_that_is_not_a_string_is_rejected() -> None:
    for tenant in (7, b"acme", ["acme"]):
        with pytest.raises(InvalidKey, match="not a string"):
            await store_callbacks(InMemoryStore())["fetch_memories_callback"](SimpleNamespace(tenant=tenant))


@pytest.mark.parametrize("field", ADA)
def test_an_invalid_owner_is_rejected_when_the_callbacks_are_made(field: str) -> None:
    with pytest.raises(InvalidKey):
        store_callbacks(InMemoryStore(), **{**ADA, field: "../x"})


async def test_bound_callbacks_keep_every_promise() -> None:
    await check_callbacks(lambda: store_callbacks(InMemoryStore(), **ADA))


async def test_the_bytes_of_one_owner_are_not_in_the_spools_of_another() -> None:
    store = InMemoryStore()
    ada, bob = (store_callbacks(store, **owner) for owner in (ADA, FOREIGN[0]))
    reader = await ada["store_retrievable_bytes_callback"](None, "page", b"ada's")
    await bob["store_retrievable_bytes_callback"](None, "page", b"bob's")
    assert await reader.read_all() == b"ada's"
    spool: ByteStore = reader.spool
    kept = await spool.read("page")
    assert kept is not None
    assert await kept.read_all() == b"ada's"


async def test_one_tenant_does_not_see_the_storage_steps_of_another() -> None:
    store = InMemoryStore()
    acme, evil = store_handlers(store, tenant="acme"), store_handlers(store, tenant="evil")
    for kind in ("session", "message", "part", "sandbox", "setup"):
        await acme[f"{kind}.set"](id="one", value={"id": "one", "sessionId": "s1"})
        assert await evil[f"{kind}.get"](id="one") is None
    for kind in ("message", "part"):
        assert await evil[f"{kind}.listBySession"](sessionId="s1") == []
        assert len(await acme[f"{kind}.listBySession"](sessionId="s1")) == 1
