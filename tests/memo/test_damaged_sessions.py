"""One damaged session never stops a list, a scan, or the consolidation of another user, and its error says where."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from memo import FilesystemStore, SQLiteStore
from memo.consolidation import UserMemoryConsolidationService
from memo.errors import Corrupt
from memo.ids import UserRef
from tests.memo.consolidation.scenes import page, say

pytestmark = pytest.mark.anyio

Damage = Callable[[Path], None]


def statement(sql: str) -> Damage:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database:
            database.execute(sql)
            database.commit()

    return damage


def replaced(file: str, old: bytes, new: bytes) -> Damage:
    def damage(path: Path) -> None:
        place = path / "tenants/acme" / file
        content = place.read_bytes()
        assert old in content
        place.write_bytes(content.replace(old, new))

    return damage


def store_at(path: Path) -> Any:
    return SQLiteStore(path) if path.suffix == ".db" else FilesystemStore(path, watch=False)


@pytest.fixture
async def filled(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A store with a session of bob, to be damaged, and one of ann."""
    path = tmp_path / ("memo.db" if request.param == "sqlite" else "memo")
    async with store_at(path) as store:
        await say(store, "of-bob", "I prefer long answers.", "I like graphs.", user="bob")
        await say(store, "of-ann", "I prefer short answers.")
    return path


LISTED = [
    ("sqlite", statement("UPDATE sessions SET updated_at = 'never' WHERE session = 'of-bob'")),
    ("sqlite", statement("UPDATE sessions SET session = '../x' WHERE session = 'of-bob'")),
    ("sqlite", statement("UPDATE pending_sessions SET changed_at = x'ff' WHERE user_id = 'bob'")),
    ("directory", replaced("sessions/of-bob/session.jsonl", b'"state"', b'"st')),
    ("directory", replaced("sessions/of-bob/session.jsonl", b'{"type":"session"', b'{"type":"sess')),
    ("directory", replaced("sessions/of-bob/session.jsonl", b'"count"', b'"c\xffunt"')),
]


# Specification: 001.87
@pytest.mark.parametrize(("filled", "damage"), LISTED, indirect=["filled"])
async def test_lists_and_scans_have_everyone_else(
    filled: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    damage(filled)
    with caplog.at_level(logging.WARNING):
        async with store_at(filled) as store:
            assert "of-ann" in [session.session for session in await store.list_sessions()]
            assert [meta.session for meta in await store.list_sessions_by_user("acme", "ann")] == ["of-ann"]
            await store.list_sessions_by_user("acme", "bob")
            assert UserRef.of("acme", "ann") in await store.list_users()
            assert "ann" in [pending.user.user for pending in await store.list_pending()]
            await store.list_session_revisions(UserRef.of("acme", "bob"))
            service = UserMemoryConsolidationService(store)
            results = {str(result.user.user): result.outcome for result in await service.run_once(everybody=True)}
            assert results["ann"] == "written"
            assert "Prefers short answers" in await page(store)
    assert "damaged" in caplog.text


@pytest.mark.parametrize("value", ["'never'", "x'ff'", "1e300"])
async def test_a_damaged_row_of_a_session_is_named(tmp_path: Path, value: str) -> None:
    path = tmp_path / "memo.db"
    async with store_at(path) as store:
        await say(store, "s1", "hello")
    statement(f"UPDATE sessions SET created_at = {value}")(path)
    async with store_at(path) as store:
        with pytest.raises(Corrupt, match="cannot read session acme:s1: its row is damaged"):
            await store.get_session("acme", "s1")


MESSAGES = [
    ("sqlite", statement("UPDATE messages SET body = '{' WHERE session = 'of-bob' AND position = 2"), "message 2 of"),
    (
        "directory",
        replaced("sessions/of-bob/messages.jsonl", b'"content":"I like', b'"content":\xffI like'),
        "tenants/acme/sessions/of-bob/messages.jsonl line 2",
    ),
]


# Specification: 001.87
@pytest.mark.parametrize(("filled", "damage", "where"), MESSAGES, indirect=["filled"])
async def test_a_damaged_message_is_named_and_only_its_user_fails(filled: Path, damage: Damage, where: str) -> None:
    damage(filled)
    async with store_at(filled) as store:
        with pytest.raises(Corrupt, match=where):
            await store.load_all_messages("acme", "of-bob")
        service = UserMemoryConsolidationService(store)
        results = {str(r.user.user): r for r in await service.run_once(everybody=True)}
        assert results["ann"].outcome == "written"
        assert results["bob"].outcome == "failed"
        assert where in results["bob"].reason


@pytest.mark.parametrize("kind", ["sqlite", "directory"])
async def test_a_damaged_session_leaves_out_only_itself_of_its_users_profile(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("memo.db" if kind == "sqlite" else "memo")
    async with store_at(path) as store:
        await say(store, "good", "I prefer short answers.")
        await say(store, "bad", "I like graphs.")
    damage = (
        statement("UPDATE messages SET body = '{' WHERE session = 'bad'")
        if kind == "sqlite"
        else replaced("sessions/bad/messages.jsonl", b'{"role"', b'{"ro"le"')
    )
    damage(path)
    async with store_at(path) as store:
        result = await UserMemoryConsolidationService(store).consolidate("acme", "ann")
        assert (result.outcome, [session for session, _ in result.failed]) == ("written", ["bad"])
        assert "Prefers short answers" in await page(store)


# Specification: 001.40
@pytest.mark.parametrize("kind", ["sqlite", "directory"])
async def test_a_damaged_trace_or_event_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("memo.db" if kind == "sqlite" else "memo")
    async with store_at(path) as store:
        await say(store, "s1", "hello")
        for number in range(3):
            await store.session_trace_store("acme:s1").append_envelope({"number": number})
    damage = (
        statement("UPDATE logs SET body = '{' WHERE log = 'trace' AND position = 2")
        if kind == "sqlite"
        else replaced("sessions/s1/trace/events.jsonl", b'{"number":1}', b'{"number')
    )
    damage(path)
    where = (
        "row 2 of log trace of session acme:s1"
        if kind == "sqlite"
        else "tenants/acme/sessions/s1/trace/events.jsonl line 2"
    )
    async with store_at(path) as store:
        with pytest.raises(Corrupt, match=where):
            await store.load_trace_envelopes("acme", "s1")


async def test_a_damaged_state_of_one_user_stops_no_scan(tmp_path: Path) -> None:
    path = tmp_path / "memo"
    async with store_at(path) as store:
        for user in ("ann", "bob"):
            await say(store, f"of-{user}", "I prefer short answers.", user=user)
        service = UserMemoryConsolidationService(store)
        await service.run_once(everybody=True)
        (path / "tenants/acme/users/bob/.memory-state.json").write_bytes(b"{")
        for user in ("ann", "bob"):
            await say(store, f"of-{user}", "I like graphs.", user=user)
        assert {pending.user.user for pending in await store.list_pending()} == {"ann", "bob"}
        results = {str(result.user.user): result.outcome for result in await service.run_once(everybody=True)}
        assert results == {"ann": "written", "bob": "failed"}
