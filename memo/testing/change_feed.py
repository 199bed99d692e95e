"""What a change feed promises: every committed change once, in order, from any cursor; and waiting readers wake up.

A feed with a gap fails the check instead of hanging it.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import anyio

from memo.documents import ABSENT, ArtifactKey, DocumentKey, DocumentName
from memo.errors import RevisionConflict
from memo.testing.promises import Factory, Promise, expect, expect_equal, fresh, keep, together


async def check_change_feed(make: Factory) -> None:
    await keep(make, FEED_PROMISES)


def _key(name: str = "NOTES.md") -> DocumentKey:
    return DocumentKey.of(fresh("t"), fresh("s"), "session", name)


async def _read(store: Any, since: int) -> list[Any]:
    """Return every change after `since`, up to one that is written now, so that a gap cannot hang the check."""
    last = _key("LAST.md")
    changes: list[Any] = []
    async with aclosing(store.changes(since=since)) as feed:
        await store.write_document(last, "the end")
        with anyio.fail_after(10):
            async for change in feed:
                if change.key == last:
                    break
                changes.append(change)
    return changes


def _seen(changes: list[Any]) -> list[tuple[Any, int]]:
    return [(change.key, change.revision) for change in changes]


async def every_change_is_reported_once_in_order_with_key_and_revision(store: Any) -> None:
    start = await store.last_change()
    expected: list[tuple[Any, int]] = []
    keys = [_key("NOTES.md"), _key("TODO.md")]
    for number in range(20):
        key = keys[number % 2]
        document = await store.write_document(key, f"text {number}")
        expected.append((key, document.revision))
    appended = await store.append_document(keys[0], "more")
    expected.append((keys[0], appended.revision))
    artifact = ArtifactKey.of(f"{fresh('t')}:{fresh('s')}", "call-1")
    entry = await store.write_artifact(artifact, "output")
    await store.write_artifact(artifact, "output")
    expected.append((artifact, entry.revision))
    newest = await store.last_change()
    changes = await _read(store, start)
    expect_equal(_seen(changes), expected, "the changes")
    expect_equal(newest, changes[-1].cursor, "the last change")
    cursors = [change.cursor for change in changes]
    expect(cursors == sorted(set(cursors)), f"the cursors do not grow: {cursors}")
    expect_equal(changes[-1].sha256, entry.sha256, "the sha256 of the last change")


async def a_feed_continues_from_any_cursor(store: Any) -> None:
    start = await store.last_change()
    key = _key()
    for number in range(6):
        await store.write_document(key, f"text {number}")
    changes = await _read(store, start)
    for index, change in enumerate(changes):
        seen = await _read(store, change.cursor)
        expect_equal(_seen(seen)[: 5 - index], _seen(changes[index + 1 :]), f"what follows {change.cursor}")


async def a_refused_write_is_not_reported(store: Any) -> None:
    start = await store.last_change()
    key = _key()
    await store.write_document(key, "one")
    with suppress(RevisionConflict):
        await store.write_document(key, "two", expected=ABSENT)
    last = await store.write_document(key, "three")
    expect_equal(_seen(await _read(store, start)), [(key, 1), (key, last.revision)], "the changes")


async def a_waiting_reader_is_woken(store: Any) -> None:
    key = _key()
    async with aclosing(store.changes(since=await store.last_change())) as feed:
        for number in range(5):
            async with anyio.create_task_group() as tasks:

                async def read() -> None:
                    with anyio.fail_after(10):
                        change = await anext(feed)
                    expect_equal(change.key, key, "the key of the change")

                tasks.start_soon(read)
                await anyio.wait_all_tasks_blocked()
                await store.write_document(key, f"text {number}")


async def concurrent_changes_are_all_reported_to_every_reader(store: Any) -> None:
    start = await store.last_change()
    keys = [_key() for _ in range(5)]

    async def write(number: int) -> None:
        for turn in range(10):
            await store.write_document(keys[number], f"text {turn}")

    async with aclosing(store.changes(since=start)) as feed:
        await together(5, write)
        with anyio.fail_after(10):
            early = [await anext(feed) for _ in range(50)]
    late = await _read(store, start)
    expect_equal(early, late, "what a reader got during the writes, compared with one afterwards,")
    for key in keys:
        seen = [change.revision for change in late if change.key == key]
        expect(seen == sorted(set(seen)), f"the revisions of one document are reported as {seen}")
        expect_equal(len(seen), 10, "the number of changes of one document")


async def deletions_and_moves_are_reported(store: Any) -> None:
    if not callable(getattr(store, "delete_document", None)):
        return  # optional
    start, key, to = await store.last_change(), _key("a.md"), DocumentName("b.md")
    first = await store.write_document(key, "one")
    expected: list[tuple[Any, int, bool]] = [(key, first.revision, False)]
    if callable(getattr(store, "move_document", None)):
        moved = await store.move_document(key, to)
        key_after = replace(key, name=to)
        expected += [(key, moved.deletion.revision, True), (key_after, moved.document.revision, False)]
        key = key_after
    deletion = await store.delete_document(key)
    expected.append((key, deletion.revision, True))
    seen = [(change.key, change.revision, change.deleted) for change in await _read(store, start)]
    expect_equal(seen, expected, "the changes")


FEED_PROMISES: tuple[Promise, ...] = (
    every_change_is_reported_once_in_order_with_key_and_revision,
    a_feed_continues_from_any_cursor,
    a_refused_write_is_not_reported,
    a_waiting_reader_is_woken,
    concurrent_changes_are_all_reported_to_every_reader,
    deletions_and_moves_are_reported,
)
