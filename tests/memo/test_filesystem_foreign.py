"""A directory that another program of the same layout has written: sessions, archives, traces and orchestration."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from memo import FilesystemStore
from memo.consolidation import UserMemoryConsolidationService
from memo.documents import DocumentKey, Scope
from memo.errors import Corrupt, SessionTaken
from memo.ids import OwnerId, TenantId, UserRef

pytestmark = pytest.mark.anyio

CREATED_MS = 1_767_268_800_000  # 2026-01-01T12:00:00Z
SESSION = "tenants/acme/sessions/s1"


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text, "timestamp": CREATED_MS}


def placeholder(archive: int, count: int) -> dict[str, Any]:
    number = f"{archive:04d}"
    return said(
        f"[Conversation compacted at 2026-01-01T13:00:00.000Z. Full history preserved in "
        f"messages.compactions/{number}.jsonl.\nArchive ID: {number}\n{count} messages (90 tokens estimated) were "
        "compressed.\n\nSummary of compressed conversation:\nthey talked\n]"
    )


def init(session: str, user: str = "ann") -> dict[str, Any]:
    return {
        "type": "init",
        "sessionId": session,
        "tenantId": "acme",
        "userId": user,
        "agentId": "default",
        "title": None,
        "createdAt": CREATED_MS,
    }


def turn(index: int) -> dict[str, Any]:
    counts = {"inputTokens": 10, "outputTokens": 5, "cacheReadTokens": 2, "cacheWriteTokens": 1}
    return {"type": "turn", "turnIndex": index, **counts, "updatedAt": CREATED_MS + 1000 * (index + 1)}


FIRST = [said(f"one {number}") for number in range(4)]
SECOND = [said(f"two {number}") for number in range(3)]
LAST = [said("I prefer short answers."), {"role": "assistant", "content": [{"type": "text", "text": "ok"}]}]
EVENTS = [{"eventId": f"e{n}", "type": "agent_spawned", "occurredAt": "2026-01-01T12:00:00Z"} for n in range(3)]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Write a session that was compacted twice, an agent, and a user, as the other program lays them out."""
    files = {
        f"{SESSION}/session.jsonl": lines(
            init("s1"), turn(0), {"type": "update", "title": "talk", "updatedAt": CREATED_MS + 1500}, turn(1)
        ),
        f"{SESSION}/messages.jsonl": lines(placeholder(2, 4), *LAST),
        f"{SESSION}/messages.compactions/0001.jsonl": lines(*FIRST),
        f"{SESSION}/messages.compactions/0002.jsonl": lines(placeholder(1, 4), *SECOND),
        f"{SESSION}/NOTES.md": "## Compaction Summary\n",
        f"{SESSION}/user-memory.json": '{"sessionId": "s1"}',
        f"{SESSION}/subagent-logs/skill-x-1.jsonl": lines({"type": "meta"}),
        f"{SESSION}/tool-results/call-1.txt": "a long result",
        f"{SESSION}/trace/events.jsonl": lines({"id": "t1", "sequence": 0}, {"id": "t2", "sequence": 1}),
        f"{SESSION}/orchestration/events.jsonl": lines(*EVENTS),
        f"{SESSION}/orchestration/checkpoint.json": json.dumps({"agents": {"a": {}}, "lastEventId": "e1"}, indent=2),
        f"{SESSION}/orchestration/subagents/a/mailbox.jsonl": lines({"type": "input", "id": "m1"}),
        f"{SESSION}/orchestration/subagents/a/mailbox-state.json": '{\n  "processedEventCount": 1\n}',
        f"{SESSION}/orchestration/subagents/a/history.json": '[\n  {"role": "user"}\n]',
        "tenants/acme/users/ann/USER.md": "# User Profile\n",
        "tenants/acme/users/ann/.memory-state.json": '{"lastActivityAt": 1, "pendingReason": null}',
    }
    for name, text in files.items():
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "data"


@pytest.fixture
async def store(directory: Path) -> AsyncIterator[FilesystemStore]:
    async with FilesystemStore(directory, watch=False) as opened:
        yield opened


async def test_its_session_has_an_owner_times_turns_and_tokens(store: FilesystemStore) -> None:
    session = await store.get_session("acme", "s1")
    assert session is not None
    assert (session.user, session.agent, session.turns, session.tokens) == ("ann", "default", 2, 36)
    assert (session.created_at.isoformat(), session.message_count) == ("2026-01-01T12:00:00+00:00", 3)
    assert session.updated_at.timestamp() == (CREATED_MS + 2000) / 1000
    assert await store.list_sessions() == [session]
    assert [meta.session for meta in await store.list_sessions_by_user("acme", "ann")] == ["s1"]
    assert await store.list_users() == [UserRef.of("acme", "ann")]


# Specification: 001.86
async def test_its_messages_and_archives_are_read(store: FilesystemStore) -> None:
    assert await store.load_all_messages("acme", "s1") == [placeholder(2, 4), *LAST]
    assert await store.load_messages("acme", "s1", 1) == LAST[-1:]
    assert await store.load_full_history("acme", "s1") == [*FIRST, *SECOND, *LAST]


async def test_its_documents_and_artifacts_are_read_but_not_its_working_files(store: FilesystemStore) -> None:
    assert await store.read_memory_document("acme", "s1", "session", "NOTES.md") == "## Compaction Summary\n"
    assert await store.read_memory_document("acme", "ann", "user", "USER.md") == "# User Profile\n"
    assert await store.read_tool_result_artifact("acme:s1", "call-1") == "a long result"
    listed = await store.list_documents(TenantId("acme"), OwnerId("s1"), Scope.SESSION)
    assert [entry.key.name for entry in listed] == ["NOTES.md"]


async def test_its_traces_and_orchestration_are_read(store: FilesystemStore) -> None:
    assert [e["id"] for e in await store.session_trace_store("acme:s1").load_envelopes()] == ["t1", "t2"]
    orchestration = store.orchestration_persistence("acme:s1")
    assert await orchestration.load_events() == EVENTS
    state = await orchestration.recover_state()
    assert (state.snapshot, state.events) == ({"agents": {"a": {}}, "lastEventId": "e1"}, EVENTS[2:])
    assert await orchestration.load_mailbox_events("a") == [{"type": "input", "id": "m1"}]
    assert await orchestration.load_mailbox_state("a") == {"processedEventCount": 1}
    assert await orchestration.load_agent_history("a") == [{"role": "user"}]


async def test_a_checkpoint_that_names_no_event_is_followed_by_all_events(
    store: FilesystemStore, directory: Path
) -> None:
    (directory / SESSION / "orchestration/checkpoint.json").write_text('{"agents": {}, "body": 1}')
    state = await store.orchestration_persistence("acme:s1").recover_state()
    assert (state.snapshot, state.events) == ({"agents": {}, "body": 1}, EVENTS)


# Specification: 001.86
async def test_what_is_written_here_continues_it(store: FilesystemStore, directory: Path) -> None:
    before = (directory / SESSION / "session.jsonl").read_text()
    await store.append_turn("acme", "s1", [said("more")], {"input": 4})
    orchestration = store.orchestration_persistence("acme:s1")
    await orchestration.append_mailbox_event("a", {"type": "input", "id": "m2"})
    await orchestration.write_mailbox_state("a", {"processedEventCount": 2})
    await orchestration.write_agent_history("a", [])
    await orchestration.write_checkpoint({"agents": {}})
    assert (directory / SESSION / "session.jsonl").read_text().startswith(before)
    assert await store.load_full_history("acme", "s1") == [*FIRST, *SECOND, *LAST, said("more")]
    session = await store.get_session("acme", "s1")
    assert session is not None
    assert (session.turns, session.tokens, session.message_count) == (3, 40, 4)
    assert [event["id"] for event in await orchestration.load_mailbox_events("a")] == ["m1", "m2"]
    assert await orchestration.load_mailbox_state("a") == {"processedEventCount": 2}
    assert await orchestration.load_agent_history("a") == []
    assert (await orchestration.recover_state()).events == []
    assert await store.compact_if_needed("acme", "s1", lambda _: "summary", force=True)
    assert await store.load_full_history("acme", "s1") == [*FIRST, *SECOND, *LAST, said("more")]
    assert (directory / SESSION / "messages.compactions/0003.jsonl").exists()


async def test_the_other_program_may_continue_it(store: FilesystemStore, directory: Path) -> None:
    await store.append_turn("acme", "s1", [said("ours")], {"input": 4})
    with (directory / SESSION / "messages.jsonl").open("a") as messages:
        messages.write(lines(said("theirs")))
    with (directory / SESSION / "session.jsonl").open("a") as log:
        log.write(lines(turn(2)))
    assert (await store.load_all_messages("acme", "s1"))[-2:] == [said("ours"), said("theirs")]
    session = await store.get_session("acme", "s1")
    assert session is not None
    assert (session.turns, session.tokens, session.message_count) == (4, 58, 5)


async def test_its_user_is_consolidated(store: FilesystemStore) -> None:
    service = UserMemoryConsolidationService(store)
    (result,) = await service.run_once()
    assert result.outcome == "written"
    page = await store.read_document(DocumentKey.of("acme", "ann", "user", "USER.md"))
    assert page is not None
    assert "- Prefers short answers <!-- from s1#8 -->" in page.content
    assert "# User Profile" in page.content


async def test_its_session_belongs_to_its_user(store: FilesystemStore) -> None:
    assert (await store.get_or_create("acme", "ann", "default", "s1")).turns == 2
    with pytest.raises(SessionTaken):
        await store.get_or_create("acme", "bob", "default", "s1")


async def test_a_session_copied_in_later_is_found_once_it_is_used(store: FilesystemStore, directory: Path) -> None:
    assert await store.list_users() == [UserRef.of("acme", "ann")]
    path = directory / "tenants/acme/sessions/s2"
    path.mkdir()
    (path / "session.jsonl").write_text(lines(init("s2", "bob")))
    await store.get_or_create("acme", "bob", "default", "s2")
    await store.append_messages("acme", "s2", [said("hello")])
    assert [meta.session for meta in await store.list_sessions_by_user("acme", "bob")] == ["s2"]
    assert {pending.user.user for pending in await store.list_pending()} == {"ann", "bob"}


@pytest.mark.parametrize(
    ("file", "content", "where"),
    [
        ("session.jsonl", lines(init("s1")) + '{"type": "turn"', "session.jsonl"),
        ("session.jsonl", lines(init("s1"), turn(0)) + "broken\n", "session.jsonl: line 3 is damaged"),
        ("session.jsonl", "", "session.jsonl: it is empty"),
        ("session.jsonl", lines({"type": "turn"}), "session.jsonl: line 1 is damaged"),
        ("messages.jsonl", lines(said("one")) + json.dumps(said("two")), "messages.jsonl: line 2 does not end with"),
    ],
)
async def test_a_damaged_file_is_named_with_its_line_and_stops_no_list(
    store: FilesystemStore, directory: Path, file: str, content: str, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = directory / "tenants/acme/sessions/s2"
    path.mkdir()
    (path / "session.jsonl").write_text(lines(init("s2", "bob"), turn(0)))
    (directory / SESSION / file).write_text(content)
    if where == "session.jsonl":  # a line without its end was never complete
        assert (await store.get_session("acme", "s1")) is not None
        return
    with pytest.raises(Corrupt, match=where):
        await store.get_session("acme", "s1")
    with caplog.at_level(logging.WARNING):
        assert [session.session for session in await store.list_sessions("acme")] == ["s2"]
    assert f"tenants/acme/sessions/s1/{where}" in caplog.text
