"""AgentApp on real stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from memo import CompactionOptions, InMemoryStore, SessionRef, SQLiteStore
from memo.app import create_agent_app
from memo.errors import Corrupt, Unsupported
from memo.stores import BaseStore
from memo.stores.filesystem import FilesystemStore

pytestmark = pytest.mark.anyio

REF = SessionRef.of("acme", "s1")


@pytest.fixture(params=["memory", "sqlite", "directory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BaseStore]:
    makers: dict[str, Callable[[], BaseStore]] = {
        "memory": InMemoryStore,
        "sqlite": lambda: SQLiteStore(tmp_path / "memo.db"),
        "directory": lambda: FilesystemStore(tmp_path / "memo"),
    }
    async with makers[request.param]() as opened:
        await opened.get_or_create("acme", "ann", "a", "s1")
        yield opened


class Mirrors:
    """The part of a sandbox manager that the app uses; it records each text it receives."""

    def __init__(self, error: Exception | None = None) -> None:
        self.shown: dict[tuple[str, str], str] = {}
        self.error = error

    async def refresh_memo_mirror(self, session: SessionRef, container_path: str, content: str) -> None:
        if self.error is not None:
            raise self.error
        self.shown[str(session), container_path] = content


def said(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"message {number}"}


async def test_a_turn_is_kept_and_counted(store: BaseStore) -> None:
    app = create_agent_app(session_store=store)
    started = await app.start_session("acme", "ann", "a")
    outcome = await app.finish_turn(started.ref, [said(1), said(2)], {"input": 10, "output": 2})
    assert not outcome.compacted
    assert await app.load_messages(started.ref) == [said(1), said(2)]
    session = next(s for s in await app.inspector.list_sessions("acme") if s.session == started.session)
    assert (session.turns, session.tokens) == (1, 12)


async def test_a_turn_compacts_when_it_is_due_and_the_mirror_shows_the_notes(store: BaseStore) -> None:
    mirrors = Mirrors()
    app = create_agent_app(
        session_store=store,
        sandbox_manager=mirrors,
        summarize=lambda messages: f"{len(messages)} messages",
        compaction=CompactionOptions(trigger_tokens=1, min_messages=4),
    )
    assert not (await app.finish_turn("acme:s1", [said(n) for n in range(3)], {})).compacted
    assert (await app.finish_turn("acme:s1", [said(3)], {})).compacted
    notes = await store.read_memory_document("acme", "s1", "session", "NOTES.md")
    assert notes is not None
    assert "2 messages" in notes
    assert mirrors.shown == {("acme:s1", "/workspace/memo/session/NOTES.md"): notes}
    assert await store.load_full_history("acme", "s1") == [said(n) for n in range(4)]


# Specification: 001.71
async def test_a_long_tool_result_is_stored_and_then_mirrored(store: BaseStore) -> None:
    mirrors = Mirrors()
    app = create_agent_app(session_store=store, sandbox_manager=mirrors)
    long = "line\n" * 5000
    results = [{"role": "toolResult", "toolCallId": f"call-{n}", "content": long} for n in range(2)]
    compacted = await app.compact_tool_results("acme:s1", results, keep_recent=1, recent_max_tokens=100_000)
    path = "/workspace/memo/session/tool-results/call-0.txt"
    assert path in compacted[0]["content"]
    assert compacted[1] == results[1]
    assert mirrors.shown == {("acme:s1", path): long}
    assert await store.read_tool_result_artifact(REF, "call-0") == long


async def test_a_mirror_that_fails_loses_nothing_and_is_counted(store: BaseStore) -> None:
    app = create_agent_app(session_store=store, sandbox_manager=Mirrors(RuntimeError("no engine")))
    await app.write_tool_result_artifact(REF, "call-1", "text")
    assert await store.read_tool_result_artifact(REF, "call-1") == "text"
    assert app.lost["mirror"] == 1


# Specification: 001.38, 001.39, 001.49
async def test_factories_are_called_once_for_each_session(store: BaseStore) -> None:
    made: list[str] = []

    def traces(ref: SessionRef) -> Any:
        made.append(f"traces of {ref}")
        return store.session_trace_store(ref)

    def orchestration(ref: SessionRef) -> Any:
        made.append(f"orchestration of {ref}")
        return store.orchestration_persistence(ref)

    app = create_agent_app(
        session_store=store, trace_store_factory=traces, create_orchestration_persistence=orchestration
    )
    for number in range(3):
        await app.trace_store("acme:s1").append_envelope({"number": number})
        await app.trace_store(REF).append_envelope({"number": number})
        await app.orchestration("acme:s1").append_event({"id": f"e{number}"})
    await app.trace_store("acme:s2").append_envelope({})
    assert made == ["traces of acme:s1", "orchestration of acme:s1", "traces of acme:s2"]
    assert len(await app.trace_store("acme:s1").load_envelopes()) == 6
    assert len(await app.inspector.load_orchestration_events("acme", "s1")) == 3
    app.forget_session("acme:s1")
    app.trace_store("acme:s1")
    assert made[-1] == "traces of acme:s1"


class Broken:
    """Traces and orchestration of an unreachable backend."""

    def __init__(self, ref: SessionRef) -> None:
        self.ref = ref

    async def append_envelope(self, envelope: Mapping[str, Any]) -> None:
        raise ConnectionError("SECRET")

    async def append_event(self, event: Mapping[str, Any]) -> None:
        raise Corrupt("cannot write events")

    async def write_checkpoint(self, snapshot: Mapping[str, Any]) -> None:
        raise ZeroDivisionError

    async def load_events(self) -> list[Any]:
        raise Corrupt("cannot read events")


# Specification: 001.85
async def test_failed_trace_and_orchestration_writes_are_counted_and_never_raised(
    store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_agent_app(session_store=store, trace_store_factory=Broken, create_orchestration_persistence=Broken)  # type: ignore[arg-type]
    await app.trace_store("acme:s1").append_envelope({"text": "SECRET"})
    await app.orchestration("acme:s1").append_event({})
    await app.orchestration("acme:s1").write_checkpoint({})
    assert app.lost == {"trace": 1, "orchestration": 2, "mirror": 0}
    assert len(caplog.records) == 3
    assert "SECRET" not in caplog.text
    with pytest.raises(Corrupt):
        await app.orchestration("acme:s1").load_events()


class OnlySeven:
    """A session store with only the seven required methods, backed by a real one."""

    def __init__(self, inner: BaseStore) -> None:
        for name in (
            "get_or_create",
            "load_messages",
            "load_messages_with_budget",
            "load_all_messages",
            "append_messages",
            "record_turn",
            "compact_if_needed",
        ):
            setattr(self, name, getattr(inner, name))


# Specification: 001.1, 001.2, 001.24
async def test_seven_methods_are_enough_and_a_missing_one_is_reported(store: BaseStore) -> None:
    app = create_agent_app(session_store=OnlySeven(store), summarize=lambda _: "summary")  # type: ignore[arg-type]
    await app.finish_turn("acme:s1", [said(1), said(2)], {"input": 1})
    assert await app.compact_if_needed("acme:s1", force=True)
    assert (await store.get_session("acme", "s1")).turns == 1  # type: ignore[union-attr]
    with pytest.raises(Unsupported, match="cannot inspect"):
        app.inspector  # noqa: B018
    with pytest.raises(Unsupported, match="cannot store traces"):
        app.trace_store("acme:s1")
    with pytest.raises(Unsupported, match="cannot store orchestration"):
        app.orchestration("acme:s1")
    with pytest.raises(Unsupported, match="cannot store artifacts in OnlySeven"):
        await app.write_tool_result_artifact("acme:s1", "call-1", "text")
    long = {"role": "toolResult", "toolCallId": "call-1", "content": "x" * 50_000}
    assert "was not kept" in (await app.compact_tool_results("acme:s1", [long]))[0]["content"]
