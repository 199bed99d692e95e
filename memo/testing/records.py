"""What a store of records promises: atomic batches, and a stable order."""

from __future__ import annotations

from typing import Any

from memo.errors import Absent
from memo.records import Delete, Merge, Put, RecordScope
from memo.testing.promises import Promise, expect, expect_equal, fresh


def _scope(tenant: str | None = None) -> RecordScope:
    return RecordScope.of(tenant or fresh("t"), "kind-1", f"place:{fresh('p')}")


async def records_come_back_unchanged_in_the_order_of_their_first_put(store: Any) -> None:
    scope = _scope()
    value = {"text": "Ünï 日本\n", "deep": [1, 2.5, None, True, {"k": "v"}]}
    await store.apply_records([Put(scope.key(f"r{number}"), {"number": number}) for number in range(20)])
    await store.apply_records([Put(scope.key("r7"), value, "group-1"), Delete(scope.key("r3"))])
    found = await store.list_records(scope)
    expect_equal([record.id for record in found], [f"r{n}" for n in range(20) if n != 3], "the ids")
    expect_equal((await store.read_record(scope.key("r7"))).value, value, "the record")
    expect_equal([record.id for record in await store.list_records(scope, "group-1")], ["r7"], "the group")
    expect(await store.read_record(scope.key("r3")) is None, "a deleted record still exists")
    expect_equal(await store.list_records(_scope(scope.tenant)), [], "the records of another place")
    expect(await store.read_record(_scope().key("r7")) is None, "another tenant has the record too")


async def a_batch_of_records_is_atomic(store: Any) -> None:
    scope = _scope()
    await store.apply_records([Put(scope.key("kept"), {"a": 1})])
    try:
        await store.apply_records(
            [Merge(scope.key("kept"), {"a": 2}), Put(scope.key("new"), {}), Merge(scope.key("missing"), {"b": 1})]
        )
    except Absent:
        pass
    else:
        expect(False, "a missing record was changed")
    found = [(record.id, record.value) for record in await store.list_records(scope)]
    expect_equal(found, [("kept", {"a": 1})], "the records after a batch that failed")
    left = await store.apply_records([Merge(scope.key("kept"), {"b": 2}), Merge(scope.key("made"), {}, create=True)])
    expect_equal(left, [{"a": 1, "b": 2}, {}], "what a batch left")


RECORD_PROMISES: tuple[Promise, ...] = (
    records_come_back_unchanged_in_the_order_of_their_first_put,
    a_batch_of_records_is_atomic,
)
