"""Leases, pending sessions and settling, on every store."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from memo import ABSENT, SQLiteStore
from memo.consolidation import Standing
from memo.documents import USER, DocumentKey
from memo.errors import Corrupt, RevisionConflict, Unsupported
from memo.ids import SessionId, UserRef
from memo.leases import Held, Lease, LeaseLost
from memo.ledger import DocumentChange, Settlement
from memo.stores.filesystem import FilesystemStore
from memo.stores.filesystem import ledger as filesystem_ledger
from memo.stores.sqlite.schema import MIGRATIONS
from tests.memo.consolidation.scenes import ANN, AnyStore, Clock, page, revisions, say, service_of, write_page

pytestmark = pytest.mark.anyio

KEY = DocumentKey.of_user(ANN.tenant, ANN.user, USER)
S1 = SessionId("s1")


async def take(store: AnyStore, holder: str = "one", ttl_s: float = 10) -> Lease:
    lease = await store.acquire_lease(ANN, holder, ttl_s)
    assert isinstance(lease, Lease)
    return lease


def settlement(text: str | None = None, expected: object = ABSENT, **more: object) -> Settlement:
    change = None if text is None else DocumentChange(KEY, text, expected)  # type: ignore[arg-type]
    return Settlement({"runs": 1}, {"kept": "yes"}, document=change, **more)  # type: ignore[arg-type]


async def test_a_lease_has_one_holder_and_tokens_only_grow(store: AnyStore, clock: Clock) -> None:
    first = await take(store)
    held = await store.acquire_lease(ANN, "two", 10)
    assert held == Held(ANN, "one", first.expires_at)
    assert isinstance(await store.acquire_lease(UserRef.of("acme", "bob"), "two", 10), Lease)
    await store.release_lease(first)
    second = await take(store, "two")
    clock.advance(seconds=11)
    third = await take(store, "three")
    assert first.token < second.token < third.token


async def test_a_lease_lasts_while_it_is_renewed(store: AnyStore, clock: Clock) -> None:
    lease = await take(store)
    for _ in range(5):
        clock.advance(seconds=9)
        lease = await store.renew_lease(lease, 10)
        assert isinstance(await store.acquire_lease(ANN, "two", 10), Held)
    clock.advance(seconds=10)
    with pytest.raises(LeaseLost):
        await store.renew_lease(lease, 10)


async def test_a_released_lease_cannot_be_renewed_or_release_another(store: AnyStore) -> None:
    lease = await take(store)
    await store.release_lease(lease)
    with pytest.raises(LeaseLost):
        await store.renew_lease(lease, 10)
    other = await take(store, "two")
    await store.release_lease(lease)
    assert isinstance(await store.acquire_lease(ANN, "three", 10), Held)
    await store.release_lease(other)


async def test_a_late_write_by_a_stalled_holder_is_rejected(store: AnyStore, clock: Clock) -> None:
    await say(store, "s1", "hello")
    stalled = await take(store)
    clock.advance(seconds=11)
    with pytest.raises(LeaseLost):
        await store.settle(stalled, settlement("late", settled={S1: 1}))
    other = await take(store, "two")
    with pytest.raises(LeaseLost):
        await store.settle(stalled, settlement("late", settled={S1: 1}))
    assert await page(store) == ""
    entry = await store.read_ledger(ANN)
    assert (entry.changed, entry.standing, entry.memory) == (1, {}, {})
    written = await store.settle(other, settlement("on time", settled={S1: 1}))
    assert written is not None
    assert written.revision == 1
    assert await page(store) == "on time"


async def test_settling_is_atomic(store: AnyStore) -> None:
    await say(store, "s1", "hello")
    await write_page(store, "by hand")
    lease = await take(store)
    with pytest.raises(RevisionConflict):
        await store.settle(lease, settlement("generated", settled={S1: 1}))
    entry = await store.read_ledger(ANN)
    assert (entry.changed, entry.standing, entry.memory) == (1, {}, {})
    assert await page(store) == "by hand"
    await store.settle(lease, settlement("generated", 1, settled={S1: 1}))
    entry = await store.read_ledger(ANN)
    assert (entry.changed, entry.standing, entry.memory) == (0, {"runs": 1}, {"kept": "yes"})
    await store.settle(lease, Settlement({"runs": 2}))
    entry = await store.read_ledger(ANN)
    assert (entry.standing, entry.memory) == ({"runs": 2}, {"kept": "yes"})
    assert await store.list_standings() == [(ANN, {"runs": 2})]
    assert await store.list_standings("other") == []


async def test_a_session_is_pending_until_its_revision_is_settled(store: AnyStore, clock: Clock) -> None:
    await store.get_or_create("acme", "ann", "agent", "empty")
    assert await store.list_pending() == []
    await say(store, "s1", "one", "two")
    clock.advance(minutes=1)
    await say(store, "s2", "one")
    await say(store, "s3", "one", user="bob")
    pending = {str(p.user.user): (p.changed, p.last_activity) for p in await store.list_pending()}
    assert pending["ann"] == (2, clock.now)
    assert pending["bob"][0] == 1
    found = {r.session: (r.revision, r.is_pending) for r in await store.list_session_revisions(ANN)}
    assert found == {"s1": (2, True), "s2": (1, True)}
    lease = await take(store)
    await say(store, "s1", "three")
    await store.settle(lease, settlement(settled={S1: 2, SessionId("s2"): 1}))
    found = {r.session: (r.revision, r.is_pending) for r in await store.list_session_revisions(ANN)}
    assert found == {"s1": (3, True), "s2": (1, False)}


async def test_a_turn_without_messages_changes_nothing_but_keeps_the_user_active(store: AnyStore, clock: Clock) -> None:
    await say(store, "s1", "one")
    clock.advance(minutes=5)
    await store.record_turn("acme", "s1", {"input": 1})
    (pending,) = await store.list_pending()
    assert pending.last_activity == clock.now
    await store.settle(await take(store), settlement(settled={S1: 1}))
    await store.record_turn("acme", "s1", {"input": 1})
    assert await store.list_pending() == []


async def test_a_compacted_session_keeps_its_revision(store: AnyStore) -> None:
    await say(store, "s1", *(f"message {n}" for n in range(30)))
    assert await store.compact_if_needed("acme", "s1", lambda _: "short", force=True)
    assert [r.revision for r in await store.list_session_revisions(ANN)] == [30]
    await say(store, "s1", "one more")
    assert [r.revision for r in await store.list_session_revisions(ANN)] == [31]


async def test_sessions_from_before_the_migration_are_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memo.db"
    with monkeypatch.context() as past:
        past.setattr("memo.stores.sqlite.file.MIGRATIONS", MIGRATIONS[:2])
        async with SQLiteStore(path) as old:
            await say(old, "s1", "hello")
            await old.get_or_create("acme", "ann", "agent", "empty")
    async with SQLiteStore(path) as store:
        (pending,) = await store.list_pending()
        assert (pending.user, pending.changed) == (ANN, 1)


async def test_an_old_directory_is_indexed_once(tmp_path: Path) -> None:
    async with FilesystemStore(tmp_path, watch=False) as store:
        await say(store, "s1", "hello")
    (tmp_path / ".memo" / "pending" / "acme" / "s1").unlink()
    (tmp_path / ".memo" / "pending" / ".indexed-2").unlink()
    async with FilesystemStore(tmp_path, watch=False) as store:
        (pending,) = await store.list_pending()
        assert (pending.user, pending.changed) == (ANN, 1)


async def test_the_lines_of_a_run_killed_after_writing_its_document_count_as_generated(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Intent before effect: otherwise the next run would treat generated lines as hand-written."""

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    async with FilesystemStore(tmp_path, watch=False, settle_s=0) as store:
        await say(store, "s1", "I prefer tea over coffee.")
        with monkeypatch.context() as death:
            death.setattr(filesystem_ledger, "_keep_state", die)
            with pytest.raises(BaseExceptionGroup):
                await service_of(store, clock).consolidate("acme", "ann")
        assert "Prefers tea" in await page(store)
        assert (await store.read_ledger(ANN)).memory["written"]
        await say(store, "s1", "I prefer coffee over tea.")
        await service_of(store, clock).consolidate("acme", "ann")
        text = await page(store)
        assert "Prefers coffee over tea" in text
        assert "Prefers tea over coffee" not in text


async def test_a_scan_reads_an_index_and_no_sessions(sqlite: SQLiteStore) -> None:
    await say(sqlite, "s1", "hello")
    db = sqlite3.connect(sqlite.path)
    plan = db.execute(
        "EXPLAIN QUERY PLAN SELECT p.tenant, p.user_id, COUNT(*), MAX(p.changed_at), CAST(c.standing AS BLOB)"
        " FROM pending_sessions p"
        " LEFT JOIN consolidations c ON c.tenant = p.tenant AND c.user_id = p.user_id GROUP BY p.tenant, p.user_id"
    ).fetchall()
    db.close()
    steps = " / ".join(row[3] for row in plan)
    assert "USE TEMP" not in steps
    assert "SCAN c" not in steps


@pytest.mark.parametrize("damage", ["'{\"runs\":'", "'[]'", "''", "CAST(x'7bff' AS TEXT)"])
async def test_an_unreadable_standing_neither_hides_its_user_nor_looks_new(
    sqlite: SQLiteStore, clock: Clock, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    await say(sqlite, "s1", "I prefer short answers.")
    await say(sqlite, "s2", "I prefer short answers.", user="bob")
    await sqlite.settle(await take(sqlite), settlement())
    db = sqlite3.connect(sqlite.path)
    db.execute(f"UPDATE consolidations SET standing = {damage}")
    db.commit()
    db.close()
    found = {str(pending.user.user): pending.standing for pending in await sqlite.list_pending()}
    assert found.keys() == {"ann", "bob"}
    assert found["bob"] == {}
    with pytest.raises(Corrupt):
        Standing.parse(found["ann"])
    with pytest.raises(Corrupt, match="cannot read the consolidation standing of user ann"):
        await sqlite.read_ledger(ANN)
    ((user, standing),) = await sqlite.list_standings()
    assert user == ANN
    with pytest.raises(Corrupt):
        Standing.parse(standing)
    assert [state.user.user for state in await service_of(sqlite, clock).status()] == ["bob"]
    clock.advance(hours=1)
    assert [result.user.user for result in await service_of(sqlite, clock).run_once()] == ["bob"]
    assert "cannot consolidate user acme:ann" in caplog.text


async def test_a_store_without_a_ledger_is_rejected_naming_what_it_lacks(clock: Clock) -> None:
    with pytest.raises(Unsupported, match="acquire_lease"):
        service_of(object(), clock)


async def test_repeated_runs_write_the_page_once(store: AnyStore, clock: Clock) -> None:
    await say(store, "s1", "I prefer short answers.")
    for _ in range(3):
        await service_of(store, clock).consolidate("acme", "ann")
    assert await revisions(store) == 1
