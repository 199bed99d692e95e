"""Records: ordered, atomic batches on every store; and what a crash may leave in a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from memo.errors import Absent, Corrupt, InvalidContent, InvalidKey, TooLarge, Unavailable
from memo.records import Delete, Merge, Put, RecordScope
from memo.stores.filesystem import records as filesystem_records
from memo.stores.filesystem.records import LOG
from tests.memo.turn.stores import DURABLE, STORES, opened

pytestmark = pytest.mark.anyio

NOTES = RecordScope.of("acme", "note", "session:s1")


def log_of(path: Path) -> Path:
    return path / "files" / ".memo" / "records" / "acme" / LOG


async def values(store: Any, scope: RecordScope = NOTES, group: str | None = None) -> dict[str, Any]:
    return {record.id: record.value for record in await store.list_records(scope, group)}


@pytest.mark.parametrize("kind", STORES)
class TestEveryStore:
    async def test_puts_merges_and_deletions_take_effect(self, kind: str, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as store:
            results = await store.apply_records(
                [
                    Put(NOTES.key("a"), {"x": 1, "y": 1}),
                    Merge(NOTES.key("a"), {"y": 2, "z": None}),
                    Merge(NOTES.key("b"), {"x": 3}, create=True),
                    Delete(NOTES.key("absent")),
                ]
            )
            assert results == [{"x": 1, "y": 1}, {"x": 1, "y": 2, "z": None}, {"x": 3}, None]
            assert await values(store) == {"a": {"x": 1, "y": 2, "z": None}, "b": {"x": 3}}
            assert (await store.read_record(NOTES.key("b"))).value == {"x": 3}
            assert await store.read_record(NOTES.key("c")) is None

    async def test_a_batch_that_fails_changes_nothing(self, kind: str, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as store:
            await store.apply_records([Put(NOTES.key("a"), {"x": 1})])
            good = [Put(NOTES.key("a"), {"x": 2}), Put(NOTES.key("b"), {}), Delete(NOTES.key("a"))]
            for bad, error in (
                (Merge(NOTES.key("absent"), {"x": 1}), Absent),
                (Put(NOTES.key("c"), {"x": float("nan")}), InvalidContent),
                (Put(NOTES.key("c"), {"x": object()}), InvalidContent),
                (Put(NOTES.key("c"), {"x": "a" * 17 * 1024 * 1024}), TooLarge),
                (Put(RecordScope.of("other", "note", "session:s1").key("c"), {}), InvalidContent),
            ):
                with pytest.raises(error):
                    await store.apply_records([*good, bad])
                assert await values(store) == {"a": {"x": 1}}

    async def test_records_keep_the_order_of_their_first_put(self, kind: str, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as store:
            for id in ("c", "a", "b"):
                await store.apply_records([Put(NOTES.key(id), {"n": 1})])
            await store.apply_records([Put(NOTES.key("c"), {"n": 2}), Merge(NOTES.key("a"), {"n": 2})])
            assert list(await values(store)) == ["c", "a", "b"]
            await store.apply_records([Delete(NOTES.key("c")), Put(NOTES.key("c"), {"n": 3})])
            assert list(await values(store)) == ["a", "b", "c"]

    async def test_a_record_can_be_listed_by_its_group_and_can_move(self, kind: str, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as store:
            await store.apply_records([Put(NOTES.key("a"), {}, group="g1"), Put(NOTES.key("b"), {}, group="g2")])
            await store.apply_records([Merge(NOTES.key("a"), {"x": 1}), Merge(NOTES.key("b"), {}, group="g1")])
            assert list(await values(store, group="g1")) == ["a", "b"]
            assert list(await values(store, group="g2")) == []

    async def test_scopes_do_not_mix(self, kind: str, tmp_path: Path) -> None:
        others = [("acme", "note", "session:s2"), ("acme", "task", "session:s1"), ("other", "note", "session:s1")]
        async with opened(kind, tmp_path) as store:
            await store.apply_records([Put(NOTES.key("a"), {"x": 1})])
            for other in others:
                scope = RecordScope.of(*other)
                assert await values(store, scope) == {}
                await store.apply_records([Delete(scope.key("a"))])
            assert await values(store) == {"a": {"x": 1}}

    async def test_a_stored_record_cannot_be_changed_from_outside(self, kind: str, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as store:
            value: dict[str, Any] = {"list": [1]}
            await store.apply_records([Put(NOTES.key("a"), value)])
            value["list"].append(2)
            (await store.read_record(NOTES.key("a"))).value["list"].append(3)
            assert await values(store) == {"a": {"list": [1]}}

    async def test_no_concurrent_merge_is_lost(self, kind: str, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as store:
            await store.apply_records([Put(NOTES.key("a"), {})])
            async with anyio.create_task_group() as tasks:
                for number in range(20):
                    tasks.start_soon(store.apply_records, [Merge(NOTES.key("a"), {str(number): number})])
            assert await values(store) == {"a": {str(number): number for number in range(20)}}

    async def test_a_closed_store_raises_unavailable(self, kind: str, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as store:
            await store.apply_records([Put(NOTES.key("a"), {})])
        for call in (store.apply_records([Put(NOTES.key("a"), {})]), store.read_record(NOTES.key("a"))):
            with pytest.raises(Unavailable):
                await call

    async def test_any_text_may_be_an_id_and_an_empty_batch_does_nothing(self, kind: str, tmp_path: Path) -> None:
        async with opened(kind, tmp_path) as store:
            ids = ["../../etc/passwd", "a b", "ü/💡", "functions.run:0", "'; --"]
            await store.apply_records([Put(NOTES.key(id), {"id": id}) for id in ids])
            assert await values(store) == {id: {"id": id} for id in ids}
            assert await store.apply_records([]) == []


@pytest.mark.parametrize("id", ["", "a\0b", "x" * 600, "\ud800", 7])
def test_an_id_that_no_store_can_hold_is_rejected(id: Any) -> None:
    with pytest.raises(InvalidKey):
        NOTES.key(id)


@pytest.mark.parametrize("kind", DURABLE)
async def test_two_openers_of_one_store_see_each_others_records(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as one, opened(kind, tmp_path) as two:
        for number in range(5):
            await one.apply_records([Put(NOTES.key(f"a{number}"), {"n": number})])
            await two.apply_records([Merge(NOTES.key(f"a{number}"), {"m": number})])
            assert await values(one) == await values(two)
        assert (await values(one))["a4"] == {"n": 4, "m": 4}


async def test_an_incomplete_last_line_of_a_log_is_ignored(tmp_path: Path) -> None:
    async with opened("filesystem", tmp_path) as store:
        await store.apply_records([Put(NOTES.key("a"), {"x": 1})])
    whole = log_of(tmp_path).read_bytes()
    line = whole.splitlines()[-1]
    for cut in (1, len(line) // 2, len(line)):
        log_of(tmp_path).write_bytes(whole + line[:cut])
        async with opened("filesystem", tmp_path) as store:
            assert await values(store) == {"a": {"x": 1}}
            await store.apply_records([Put(NOTES.key("b"), {"x": 2})])
            assert await values(store) == {"a": {"x": 1}, "b": {"x": 2}}
        assert log_of(tmp_path).read_bytes().startswith(whole + b'{"changes"')


async def test_damage_inside_a_log_is_an_error_never_an_empty_store(tmp_path: Path) -> None:
    async with opened("filesystem", tmp_path) as store:
        await store.apply_records([Put(NOTES.key("a"), {"x": 1})])
    log_of(tmp_path).write_bytes(b"garbage\n" + log_of(tmp_path).read_bytes())
    async with opened("filesystem", tmp_path) as store:
        with pytest.raises(Corrupt, match="records"):
            await values(store)
        with pytest.raises(Corrupt):
            await store.apply_records([Put(NOTES.key("a"), {"x": 2})])


async def test_a_symlink_in_place_of_a_log_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    async with opened("filesystem", tmp_path) as store:
        await store.apply_records([Put(NOTES.key("a"), {"x": 1})])
        log_of(tmp_path).unlink()
        log_of(tmp_path).symlink_to(elsewhere)
        with pytest.raises(Corrupt):
            await store.apply_records([Put(NOTES.key("b"), {"x": 1})])
    assert elsewhere.read_text() == ""


async def test_a_replaced_log_is_noticed_even_with_the_same_inode_and_size(tmp_path: Path) -> None:
    async with opened("filesystem", tmp_path) as one, opened("filesystem", tmp_path / "other") as other:
        for number in range(3):
            await one.apply_records([Put(NOTES.key("a"), {"n": number})])
            await other.apply_records([Put(NOTES.key("b"), {"n": number})])
        assert await values(one) == {"a": {"n": 2}}
        with log_of(tmp_path).open("r+b") as file:  # the same inode and the same size
            file.write(log_of(tmp_path / "other").read_bytes())
        assert await values(one) == {"b": {"n": 2}}


async def test_a_compaction_that_fails_does_not_fail_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(filesystem_records, "COMPACT_ABOVE_BYTES", 100)
    async with opened("filesystem", tmp_path) as store:
        await store.apply_records([Put(NOTES.key("a"), {"n": -1})])
        (log_of(tmp_path).parent / "records.next").mkdir()
        for number in range(10):
            await store.apply_records([Put(NOTES.key("a"), {"n": number})])
        assert await values(store) == {"a": {"n": 9}}
    assert any("cannot compact" in record.message for record in caplog.records)


async def test_a_log_is_compacted_and_other_openers_follow_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem_records, "COMPACT_ABOVE_BYTES", 20_000)
    async with opened("filesystem", tmp_path) as one, opened("filesystem", tmp_path) as two:
        await one.apply_records([Put(NOTES.key("first"), {"n": 0}, group="g"), Put(NOTES.key("gone"), {})])
        await one.apply_records([Delete(NOTES.key("gone"))])
        for number in range(200):
            await one.apply_records([Put(NOTES.key("a"), {"n": number, "text": "x" * 500})])
        assert log_of(tmp_path).stat().st_size < 40_000
        for store in (one, two):
            assert list(await values(store)) == ["first", "a"]
            assert (await values(store))["a"]["n"] == 199
            assert list(await values(store, group="g")) == ["first"]
