"""Hostile ids, names and contents on all three stores: the error says what is wrong, and nothing changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from memo import InMemoryStore, SQLiteStore
from memo.documents import Author, DocumentKey, sha256_of
from memo.errors import InvalidContent, InvalidKey, MemoError, TooLarge
from memo.ids import OwnerId, SessionRef, TenantId
from memo.limits import StoreLimits
from memo.records import Merge, Put, RecordScope, require_records
from memo.stores import BaseStore, StoreOptions
from memo.stores.filesystem import FilesystemStore

pytestmark = pytest.mark.anyio

KEY = DocumentKey.of("acme", "s1", "session", "NOTES.md")
REF = SessionRef.of("acme", "s1")
SMALL = StoreOptions(limits=StoreLimits(document_bytes=100, artifact_bytes=200, message_bytes=300))

Call = Callable[[BaseStore], Awaitable[object]]

HOSTILE_IDS = {
    "empty": "",
    "NUL": "a\0b",
    "only NUL": "\0",
    "dot": ".",
    "dots": "..",
    "parent": "../s1",
    "absolute": "/etc/passwd",
    "slash": "/a/b",
    "backslash dots": "..\\s1",
    "option": "-rf",
    "hidden": ".memo",
    "newline": "a\n",
    "128 + 1": "x" * 129,
    "1 MiB": "x" * 2**20,
    "1 MiB of NUL": "\0" * 2**20,
    "lone high surrogate": "a\ud800",
    "lone low surrogate": "\udfffa",
    "composed": "caf\u00e9",
    "decomposed": "cafe\u0301",
    "fullwidth dots": "\uff0e\uff0e",
    "right to left": "a\u202eb",
    "another alphabet's digit": "\u0661",
    "no text": 7,
    "nothing": None,
    "bytes": b"s1",
}

# Calls that take an id, and the noun that their error must use for it.
ID_PLACES: dict[str, tuple[str, Callable[[BaseStore, Any], Awaitable[object]]]] = {
    "tenant of a read": ("tenant id", lambda s, bad: s.read_memory_document(bad, "s1", "session", "NOTES.md")),
    "tenant of a write": ("tenant id", lambda s, bad: s.write_memory_document(bad, "s1", "session", "NOTES.md", "x")),
    "owner of a write": ("owner id", lambda s, bad: s.write_memory_document("acme", bad, "session", "NOTES.md", "x")),
    "owner of an append": ("owner id", lambda s, bad: s.append_memory_document("acme", bad, "user", "USER.md", "x")),
    "scope": ("scope", lambda s, bad: s.write_memory_document("acme", "s1", bad, "NOTES.md", "x")),
    "name of a read": ("document name", lambda s, bad: s.read_memory_document("acme", "s1", "session", bad)),
    "name of a write": ("document name", lambda s, bad: s.write_memory_document("acme", "s1", "session", bad, "x")),
    "name of an append": ("document name", lambda s, bad: s.append_memory_document("acme", "s1", "session", bad, "x")),
    "call of a write": ("tool call id", lambda s, bad: s.write_tool_result_artifact(REF, bad, "x")),
    "call of a read": ("tool call id", lambda s, bad: s.read_tool_result_artifact(REF, bad)),
    "one call of many": ("tool call id", lambda s, bad: s.read_artifacts(REF, ["call-1", bad])),
    "tenant of a new session": ("tenant id", lambda s, bad: s.get_or_create(bad, "ann", "a", "s2")),
    "user of a new session": ("user id", lambda s, bad: s.get_or_create("acme", bad, "a", "s2")),
    "agent of a new session": ("agent id", lambda s, bad: s.get_or_create("acme", "ann", bad, "s2")),
    "tenant of messages": ("tenant id", lambda s, bad: s.append_messages(bad, "s1", [])),
    "session of messages": ("session id", lambda s, bad: s.append_messages("acme", bad, [])),
    "session of a turn": ("session id", lambda s, bad: s.append_turn("acme", bad, [], {})),
    "session of a usage": ("session id", lambda s, bad: s.record_turn("acme", bad, {})),
    "session of a load": ("session id", lambda s, bad: s.load_messages("acme", bad, 5)),
    "session of a budget": ("session id", lambda s, bad: s.load_messages_with_budget("acme", bad, 5)),
    "session of a history": ("session id", lambda s, bad: s.load_full_history("acme", bad)),
    "session of a compaction": ("session id", lambda s, bad: s.compact_if_needed("acme", bad, lambda _: "sum")),
    "user of a list": ("user id", lambda s, bad: s.list_sessions_by_user("acme", bad)),
    "session of an index": ("owner id", lambda s, bad: s.build_memory_index("acme", "ann", bad)),
    "agent of a mailbox": ("agent id", lambda s, bad: _orchestration(s).append_mailbox_event(bad, {})),
    "agent of a state": ("agent id", lambda s, bad: _orchestration(s).write_mailbox_state(bad, {})),
    "agent of a past": ("agent id", lambda s, bad: _orchestration(s).write_agent_history(bad, [])),
}  # fmt: skip


def _orchestration(store: BaseStore) -> Any:
    return store.orchestration_persistence(REF)


def _made(kind: str, path: Path, options: StoreOptions | None = None) -> BaseStore:
    if kind == "memory":
        return InMemoryStore(options)
    if kind == "sqlite":
        return SQLiteStore(path / "memo.db", options)
    return FilesystemStore(path / "memo", options, watch=False)


@pytest.fixture(params=["memory", "sqlite", "filesystem"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseStore]:
    async with _made(request.param, tmp_path) as opened:
        await _furnish(opened)
        yield opened


@pytest.fixture(params=["memory", "sqlite", "filesystem"])
async def small_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseStore]:
    async with _made(request.param, tmp_path, SMALL) as opened:
        await _furnish(opened)
        yield opened


async def _furnish(store: BaseStore) -> None:
    await store.get_or_create("acme", "ann", "a", "s1")
    await store.append_messages("acme", "s1", [{"role": "user", "content": "first"}])
    await store.write_document(KEY, "before")
    await store.write_tool_result_artifact(REF, "call-1", "output")
    await store.session_trace_store(REF).append_envelope({"n": 1})
    await _orchestration(store).write_checkpoint({"lastEventId": "e1"})
    await require_records(store).apply_records([Put(RecordScope.of("acme", "fact", "p").key("r1"), {"n": 1})])


async def everything(store: BaseStore) -> list[object]:
    """Return everything readable in the one session, and every byte of a directory."""
    orchestration = _orchestration(store)
    files: dict[str, bytes] = {}
    if isinstance(store, FilesystemStore):
        files = {str(p): p.read_bytes() for p in store.path.rglob("*") if p.is_file() and p.name != "bell"}
    return [
        await store.last_change(),
        await store.list_sessions(),
        await store.list_users(),
        await store.load_full_history("acme", "s1"),
        await store.read_document(KEY),
        await store.document_history(KEY),
        await store.list_documents(TenantId("acme"), OwnerId("s1"), KEY.scope),
        await store.list_artifacts(REF),
        await store.read_artifacts(REF, ["call-1"]),
        await store.load_trace_envelopes("acme", "s1"),
        await orchestration.load_events(),
        await orchestration.load_snapshot(),
        await orchestration.load_mailbox_state("a"),
        await orchestration.load_agent_history("a"),
        await require_records(store).list_records(RecordScope.of("acme", "fact", "p")),
        files,
    ]


@pytest.mark.parametrize("bad", HOSTILE_IDS.values(), ids=HOSTILE_IDS)
async def test_a_hostile_id_is_refused_in_every_call_and_named_by_its_kind(store: BaseStore, bad: Any) -> None:
    before = await everything(store)
    for noun, call in ID_PLACES.values():
        with pytest.raises(InvalidKey, match=f"^cannot use this {noun}") as refused:
            await call(store, bad)
        assert len(str(refused.value)) < 300, "a message must not contain a mebibyte of an id"
        str(refused.value).encode()  # nor half of a surrogate pair, which cannot be logged or sent
    assert await everything(store) == before


@pytest.mark.parametrize("bad", [bad for bad in HOSTILE_IDS.values() if isinstance(bad, str)])
async def test_a_hostile_part_of_a_session_reference_is_refused(store: BaseStore, bad: str) -> None:
    before = await everything(store)
    for reference in (f"acme:{bad}", f"{bad}:s1"):
        calls: list[Callable[[str], Awaitable[object]]] = [
            lambda r: store.write_tool_result_artifact(r, "call-2", "x"),
            lambda r: store.list_tool_result_artifact_ids(r),
            lambda r: store.session_trace_store(r).append_envelope({}),
            lambda r: store.orchestration_persistence(r).append_event({}),
        ]
        for call in calls:
            with pytest.raises(InvalidKey, match=r"^cannot (use|parse) this (tenant|session)"):
                await call(reference)
    assert await everything(store) == before


NO_TEXT = {
    "lone high surrogate": ("x\ud800", r"character \d+ is half of a surrogate pair"),
    "lone low surrogate": ("\udfffx", r"character \d+ is half of a surrogate pair"),
    "swapped pair": ("ok \udc00\ud800", r"character \d+ is half of a surrogate pair"),
    "bytes": (b"bytes", "it is not text"),
    "a number": (7, "it is not text"),
    "nothing": (None, "it is not text"),
    "a list": (["x"], "it is not text"),
}


@pytest.mark.parametrize(("text", "complaint"), NO_TEXT.values(), ids=NO_TEXT)
async def test_text_without_a_utf8_form_is_refused(store: BaseStore, text: Any, complaint: str) -> None:
    before = await everything(store)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "document": lambda: store.write_document(KEY, text),
        "document ": lambda: store.append_document(KEY, text),
        "artifact": lambda: store.write_tool_result_artifact(REF, "call-1", text),
        "artifact ": lambda: store.write_tool_result_artifact(REF, "call-2", text),
    }
    for noun, call in calls.items():
        with pytest.raises(InvalidContent, match=f"^cannot store this {noun.strip()}: {complaint}"):
            await call()
    assert await everything(store) == before


JSON_PLACES: dict[str, Callable[[BaseStore, Any], Awaitable[object]]] = {
    "message": lambda s, bad: s.append_messages(
        "acme", "s1", [{"role": "user", "content": "fine"}, {"role": "user", "content": bad}]
    ),
    "message of a turn": lambda s, bad: s.append_turn("acme", "s1", [{"role": "user", "content": bad}], {"input": 1}),
    "trace envelope": lambda s, bad: s.session_trace_store(REF).append_envelope({"x": bad}),
    "event": lambda s, bad: _orchestration(s).append_event({"x": bad}),
    "checkpoint": lambda s, bad: _orchestration(s).write_checkpoint({"x": bad}),
    "mailbox event": lambda s, bad: _orchestration(s).append_mailbox_event("a", {"x": bad}),
    "mailbox state": lambda s, bad: _orchestration(s).write_mailbox_state("a", {"x": bad}),
    "agent history": lambda s, bad: _orchestration(s).write_agent_history("a", [bad]),
    "fact record": lambda s, bad: require_records(s).apply_records(
        [
            Put(RecordScope.of("acme", "fact", "p").key("r2"), {"x": "fine"}),
            Put(RecordScope.of("acme", "fact", "p").key("r1"), {"x": bad}),
        ]
    ),
}


NO_JSON: dict[str, Any] = {
    "surrogate": "\ud800",
    "surrogate in a key": {"\udfff": 1},
    "infinity": float("inf"),
    "set": {1, 2},
    "bytes": b"x",
}


@pytest.mark.parametrize("place", JSON_PLACES)
@pytest.mark.parametrize("bad", NO_JSON.values(), ids=NO_JSON)
async def test_a_batch_with_one_value_that_is_not_json_is_refused_entirely(
    store: BaseStore, place: str, bad: Any
) -> None:
    before = await everything(store)
    with pytest.raises(InvalidContent, match=f"^cannot store this {place.removesuffix(' of a turn')}: "):
        await JSON_PLACES[place](store, bad)
    assert await everything(store) == before


OVER_LIMIT: dict[str, tuple[str, Call]] = {
    "document": ("101 bytes, and the limit is 100", lambda s: s.write_document(KEY, "x" * 101)),
    "document in characters": ("102 bytes, and the limit is 100", lambda s: s.write_document(KEY, "é" * 51)),
    "document by appending": ("101 bytes, and the limit is 100", lambda s: s.append_document(KEY, "x" * 95)),
    "document that is new": (
        "2097152 bytes, and the limit is 100",
        lambda s: s.write_memory_document("acme", "ann", "user", "USER.md", "x" * 2**21),
    ),
    "artifact": (
        "201 bytes, and the limit is 200",
        lambda s: s.write_tool_result_artifact(REF, "call-1", "x" * 201),
    ),
    "artifact that is new": (
        "202 bytes, and the limit is 200",
        lambda s: s.write_tool_result_artifact(REF, "call-2", "é" * 101),
    ),
} | {
    f"{place} as JSON": (r"\d+ bytes, and the limit is 300", lambda s, call=call: call(s, "x" * 300))
    for place, call in JSON_PLACES.items()
}  # fmt: skip


@pytest.mark.parametrize(("complaint", "call"), OVER_LIMIT.values(), ids=OVER_LIMIT)
async def test_a_value_over_its_limit_is_refused_with_both_numbers(
    small_store: BaseStore, complaint: str, call: Call
) -> None:
    before = await everything(small_store)
    with pytest.raises(TooLarge, match=f"^cannot store this .*: {complaint}$"):
        await call(small_store)
    assert await everything(small_store) == before


async def test_a_value_exactly_at_its_limit_is_kept(small_store: BaseStore) -> None:
    await small_store.write_document(KEY, "é" * 50)
    await small_store.write_tool_result_artifact(REF, "call-1", "é" * 100)
    assert (await small_store.read_document(KEY)).content == "é" * 50  # type: ignore[union-attr]
    assert await small_store.read_tool_result_artifact(REF, "call-1") == "é" * 100


@pytest.mark.parametrize(
    ("author", "complaint"),
    [
        (Author("a\0b"), "author's actor"),
        (Author("a" * 1001), "author's actor"),
        (Author("\ud800"), "author's actor"),
        (Author(reason="x" * 2**20), "author's reason"),
        (Author(reason="\udfff"), "author's reason"),
        (Author(request="\0"), "request id"),
        (Author(session="../s1"), "session id"),  # type: ignore[arg-type]
    ],
    ids=str,
)
async def test_a_hostile_author_is_refused_by_every_writer(store: BaseStore, author: Author, complaint: str) -> None:
    before = await everything(store)
    calls: list[Call] = [
        lambda s: s.write_document(KEY, "x", author=author),
        lambda s: s.append_document(KEY, "x", author=author),
        lambda s: s.restore_document(KEY, 1, author=author),
    ]
    for call in calls:
        with pytest.raises((InvalidContent, InvalidKey), match=rf"^cannot .*{complaint}"):
            await call(store)
    assert await everything(store) == before


@pytest.mark.parametrize("bad", ["", "a\0b", "\ud800", "x" * 2**20, "é" * 257, 7, None])
async def test_a_hostile_name_of_a_record_is_refused(store: BaseStore, bad: Any) -> None:
    before = await everything(store)
    with pytest.raises(InvalidKey, match=r"^cannot use this record id"):
        RecordScope.of("acme", "fact", "p").key(bad)
    with pytest.raises(InvalidKey, match=r"^cannot use this record scope"):
        RecordScope.of("acme", "fact", bad)
    assert await everything(store) == before


@pytest.mark.parametrize("bad", ["a\0b", "\ud800", "x" * 2**20, 7])
async def test_a_hostile_group_of_a_record_is_refused(store: BaseStore, bad: Any) -> None:
    before = await everything(store)
    records, scope = require_records(store), RecordScope.of("acme", "fact", "p")
    for change in (Put(scope.key("r2"), {"n": 2}, bad), Merge(scope.key("r1"), {"n": 2}, bad)):
        with pytest.raises(InvalidKey, match=r"^cannot use this record group"):
            await records.apply_records([change])
    with pytest.raises(InvalidKey, match=r"^cannot use this record group"):
        await records.list_records(scope, bad)
    assert await everything(store) == before


async def test_texts_that_only_look_equal_stay_distinct(store: BaseStore) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    for text in (composed, decomposed):
        document = await store.write_document(KEY, text)
        assert document.sha256 == sha256_of(text.encode())
        assert (await store.read_document(KEY)).content == text  # type: ignore[union-attr]
    await store.append_messages("acme", "s1", [{"role": "user", "content": t} for t in (composed, decomposed)])
    assert [m["content"] for m in await store.load_messages("acme", "s1", 2)] == [composed, decomposed]
    records, scope = require_records(store), RecordScope.of("acme", "fact", "p")
    await records.apply_records([Put(scope.key(name), {"name": name}) for name in (composed, decomposed)])
    for name in (composed, decomposed):
        record = await records.read_record(scope.key(name))
        assert record is not None
        assert record.value == {"name": name}


@pytest.mark.parametrize("text", ["a\0b", "\0", "\ufeffbom", "\u2028\x85\r\n\r", "\U0010ffff", "\uffff", "../../etc"])
async def test_odd_but_legal_text_comes_back_exactly(store: BaseStore, text: str) -> None:
    document = await store.append_document(DocumentKey.of("acme", "ann", "user", "USER.md"), text)
    assert document.content == text
    await store.write_tool_result_artifact(REF, "call-2", text)
    await store.append_messages("acme", "s1", [{"role": "user", "content": text, text: text}])
    await store.session_trace_store(REF).append_envelope({text: text})
    await require_records(store).apply_records([Put(RecordScope.of("acme", "fact", "p").key("r1"), {text: text})])
    assert await store.read_memory_document("acme", "ann", "user", "USER.md") == text
    assert await store.read_tool_result_artifact(REF, "call-2") == text
    assert (await store.load_messages("acme", "s1", 1)) == [{"role": "user", "content": text, text: text}]
    assert (await store.load_trace_envelopes("acme", "s1"))[-1] == {text: text}
    (record,) = await require_records(store).list_records(RecordScope.of("acme", "fact", "p"))
    assert record.value == {text: text}


async def test_every_refusal_is_final(store: BaseStore) -> None:
    refusals: list[Call] = [
        lambda s: s.write_memory_document("..", "s1", "session", "NOTES.md", "x"),
        lambda s: s.write_document(KEY, "\ud800"),
        lambda s: s.write_document(KEY, "x" * 2**21),
    ]
    for call in refusals:
        with pytest.raises(MemoError) as refused:
            await call(store)
        assert not refused.value.retryable, "a retry would be refused again"
