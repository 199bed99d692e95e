"""StoreAdapter: the 27 callbacks for a store, with primitives as records and their bytes in spools.

Memories belong to the user, everything else to the session. A change made during a flush joins the flush's transaction;
otherwise it is its own transaction. Bytes are stored before the record that names them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

from memo.primitives import Media, Primitive, Readers, Tokenizable
from memo.records import Delete, Merge, Put, RecordChange, RecordScope, require_records
from memo.spool import ByteStore, LazyReader, MediaReader, SpoolBytes, SpooledArtifact, SpoolReader, StoreSpool
from memo.turn.callbacks import NOUNS, VERBS, Callback, Noun, Verb
from memo.turn.delta import PRIMITIVES, UnitOfWork, name_of
from memo.turn.instructions import instruction_changes, records_after, text_of
from memo.turn.owner import OwnerRule, TurnOwner
from memo.turn.tools import Tool

_FETCHED: dict[str, Noun] = {
    "fetch_messages_callback": "message",
    "fetch_memories_callback": "memory",
    "fetch_thoughts_callback": "thought",
    "fetch_tool_calls_callback": "tool_call",
    "fetch_retrievables_callback": "retrievable",
    "refresh_standing_instructions_callback": "standing_instruction",
}
MAX_SPOOLS = 1000


def store_callbacks(
    store: object,
    *,
    tenant: str | None = None,
    user: str | None = None,
    session: str | None = None,
    tools: Iterable[Tool] = (),
    upsert: bool = False,
) -> dict[str, Any]:
    """Return the 27 callbacks for a store that keeps records.

    Ids given here bind the callbacks to that owner: a context that names no owner is served as this owner, and a
    context that names another raises ForeignOwner. An id left out is taken from the context. Tools are code and are not
    stored: `fetch_tools` returns `tools`. A mutation of something that was never stored raises Absent; with `upsert` it
    stores it.
    """
    adapter = StoreAdapter(store, OwnerRule(tenant, user, session), tuple(tools), upsert=upsert)
    return {
        **{name: _fetch_callback(partial(adapter.fetch, noun)) for name, noun in _FETCHED.items()},
        "fetch_tools_callback": adapter.fetch_tools,
        **{
            f"{verb}_{noun}_callback": _change_callback(partial(adapter.change, verb, noun))
            for noun in NOUNS
            for verb in VERBS
        },
        "store_media_bytes_callback": adapter.store_media_bytes,
        "store_retrievable_bytes_callback": adapter.store_retrievable_bytes,
    }


def _fetch_callback(fetch: Any) -> Callback:
    async def callback(ctx: Any) -> Any:
        return await fetch(ctx)

    return callback


def _change_callback(change: Any) -> Callback:
    async def callback(ctx: Any, value: Any) -> None:
        await change(ctx, value)

    return callback


class StoreAdapter:
    def __init__(self, store: object, rule: OwnerRule, tools: tuple[Tool, ...], *, upsert: bool = False) -> None:
        self._store = require_records(store)
        self._owner_of = rule.owner_of
        self._tools = tools
        self._upsert = upsert
        self._spools: dict[tuple[str, str], ByteStore] = {}

    async def fetch(self, noun: Noun, ctx: Any) -> list[Any]:
        owner = self._owner_of(ctx)
        records = await self._store.list_records(_scope(noun, owner))
        if noun == "standing_instruction":
            # Two processes may each have made a different instruction into the same text.
            return [Tokenizable(text) for text in dict.fromkeys(map(text_of, records))]
        kind = cast(type[Primitive], PRIMITIVES[noun])
        readers = _SpoolReaders(self._spool("media", owner), self._spool("spool", owner))
        return [kind.from_json(record.value, readers) for record in records]

    async def fetch_tools(self, ctx: Any) -> list[Tool]:
        self._owner_of(ctx)  # raises ForeignOwner: tools may be private to their owner
        return list(self._tools)

    async def change(self, verb: Verb, noun: Noun, ctx: Any, value: Any) -> None:
        owner = self._owner_of(ctx)
        if verb != "delete":
            await self._store_bytes_of(owner, value)
        found = getattr(ctx, "unit_of_work", None)
        work = found if isinstance(found, UnitOfWork) else None
        scope = _scope(noun, owner)
        if noun == "standing_instruction":
            changes = await self._instruction_changes(verb, scope, value, work)
        else:
            changes = [_record_change(verb, scope, value, upsert=self._upsert)]
        if work is None:
            await self._store.apply_records(changes)
            return
        for change in changes:
            work.enlist(self._store, change)

    async def _instruction_changes(
        self, verb: Verb, scope: RecordScope, value: Any, work: UnitOfWork | None
    ) -> list[RecordChange]:
        records = await self._store.list_records(scope)
        pending = work.pending(self._store) if work else []
        return instruction_changes(verb, scope, value, records_after(scope, records, pending), upsert=self._upsert)

    async def store_media_bytes(self, ctx: Any, id: str, data: SpoolBytes) -> MediaReader:
        reader = await self._spool("media", self._owner_of(ctx)).write(id, data)
        return cast(MediaReader, reader)

    async def store_retrievable_bytes(self, ctx: Any, id: str, data: SpoolBytes) -> SpoolReader:
        return await self._spool("spool", self._owner_of(ctx)).write(id, data)

    async def _store_bytes_of(self, owner: TurnOwner, value: Any) -> None:
        """Copy the bytes that a primitive refers to into this store, unless they came from it."""
        for media in _media_of(value):
            await _copy(media.reader, media.id, self._spool("media", owner))
        for artifact in _artifacts_of(value):
            await _copy(artifact.reader, artifact.id, self._spool("spool", owner))

    def _spool(self, kind: str, owner: TurnOwner) -> ByteStore:
        tenant, place = owner.tenant, f"{kind}:{owner.session}"
        if (tenant, place) not in self._spools:
            if len(self._spools) >= MAX_SPOOLS:
                del self._spools[next(iter(self._spools))]  # only a handle; a new one reads the same bytes
            own = getattr(self._store, "spool", None)  # a store may have a better place for bytes than records
            self._spools[tenant, place] = own(tenant, place) if own else StoreSpool(self._store, tenant, place)
        return self._spools[tenant, place]


def _scope(noun: Noun, owner: TurnOwner) -> RecordScope:
    place = f"user:{owner.user}" if noun == "memory" else f"session:{owner.session}"
    return RecordScope.of(owner.tenant, f"turn.{noun}", place)


def _record_change(verb: Verb, scope: RecordScope, value: Any, *, upsert: bool) -> RecordChange:
    if verb == "delete":
        return Delete(scope.key(name_of(value)))
    if verb == "store":
        return Put(scope.key(value.id), value.to_json())
    return Merge(scope.key(value.id), value.to_json(), create=upsert)  # a merge keeps the other fields of the record


class _SpoolReaders(Readers):
    def __init__(self, media: ByteStore, spools: ByteStore) -> None:
        self._media = media
        self._spools = spools

    def media(self, id: str) -> MediaReader:
        return LazyReader(self._media, id)

    def spool(self, id: str) -> SpoolReader:
        return LazyReader(self._spools, id)


def _media_of(value: Any) -> tuple[Media, ...]:
    return (getattr(value, "attachments", None) or ()) + getattr(value, "media", ())


def _artifacts_of(value: Any) -> tuple[SpooledArtifact, ...]:
    content = getattr(value, "content", None)
    return getattr(value, "artifacts", ()) + ((content,) if isinstance(content, SpooledArtifact) else ())


async def _copy(reader: Any, id: str, spool: ByteStore) -> None:
    if getattr(reader, "spool", None) is spool and getattr(reader, "id", None) == id:
        return  # already in this spool
    await spool.write(id, reader.stream() if isinstance(reader, MediaReader) else await reader.read_all())
