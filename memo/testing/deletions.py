"""What deleting and moving documents promise: each is a revision, atomic, compared with what the caller saw.

Only for stores with revisions that can delete, or move.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from memo.documents import ABSENT, Author, DocumentKey, DocumentName
from memo.errors import Absent, NameTaken, RevisionConflict
from memo.testing.promises import Promise, expect, expect_equal, fresh, together


def _key(name: str = "memories/plan.md") -> DocumentKey:
    return DocumentKey.of(fresh("t"), fresh("s"), "session", name)


async def _names(store: Any, key: DocumentKey) -> list[str]:
    return [str(entry.key.name) for entry in await store.list_documents(key.tenant, key.owner, key.scope)]


async def a_deleted_document_is_absent_keeps_its_history_and_can_be_restored(store: Any) -> None:
    key = _key()
    first = await store.write_document(key, "precious")
    deletion = await store.delete_document(key, author=Author("ann", reason="obsolete"))
    expect(deletion.revision > first.revision, f"the deletion has revision {deletion.revision} after {first.revision}")
    expect(deletion.deleted, "the deletion is not marked as one")
    expect_equal(await store.read_document(key), None, "a deleted document")
    expect_equal(await store.read_document(key, deletion.revision), None, "the revision that is a deletion")
    expect_equal(
        await store.read_memory_document(key.tenant, key.owner, str(key.scope), key.name), None, "its plain text"
    )
    expect_equal(await _names(store, key), [], "the names listed after a deletion")
    expect_equal(await store.read_document(key, first.revision), first, "the revision before the deletion")
    newest, oldest = await store.document_history(key)
    expect_equal((newest.deleted, newest.actor, newest.reason), (True, "ann", "obsolete"), "the newest of the history")
    expect_equal((oldest.deleted, oldest.revision), (False, first.revision), "the oldest of the history")
    restored = await store.restore_document(key, first.revision)
    expect(restored.revision > deletion.revision, f"revision {restored.revision} after {deletion.revision}")
    expect_equal(await store.read_document(key), restored, "the restored document")
    expect_equal(await _names(store, key), [key.name], "the names listed after a restore")


async def a_deleted_document_is_created_again_by_a_write_and_its_revisions_grow(store: Any) -> None:
    key = _key()
    await store.write_document(key, "one")
    deletion = await store.delete_document(key)
    again = await store.write_document(key, "two", expected=ABSENT)
    expect(again.revision > deletion.revision, f"revision {again.revision} after {deletion.revision}")
    await store.delete_document(key)
    appended = await store.append_document(key, "three")
    expect_equal(appended.content, "three", "the text appended to a deleted document")


async def a_write_based_on_a_deleted_revision_conflicts(store: Any) -> None:
    key = _key()
    first = await store.write_document(key, "one")
    deletion = await store.delete_document(key)
    try:
        await store.write_document(key, "two", expected=first.revision)
    except RevisionConflict as error:
        expect_equal((error.current, error.deletion), (None, deletion.revision), "the document and the deletion in it")
    else:
        expect(False, "a write based on a deleted revision was accepted")
    expect_equal(await store.read_document(key), None, "the document after the refused write")


async def a_stale_deletion_changes_nothing(store: Any) -> None:
    key = _key()
    first = await store.write_document(key, "one")
    second = await store.write_document(key, "two")
    try:
        await store.delete_document(key, expected=first.revision)
    except RevisionConflict as error:
        expect_equal(error.current, second, "the document in the conflict")
    else:
        expect(False, "a deletion that expected an old revision was accepted")
    expect_equal(await store.read_document(key), second, "the document after the refused deletion")
    await store.delete_document(key, expected=second.revision)
    for missing in (key, _key()):
        try:
            await store.delete_document(missing)
        except Absent:
            continue
        expect(False, "a document that does not exist was deleted")


async def one_of_several_concurrent_deletions_wins(store: Any) -> None:
    key, won = _key(), []
    first = await store.write_document(key, "one")

    async def delete(number: int) -> None:
        try:
            won.append(await store.delete_document(key, expected=first.revision))
        except (RevisionConflict, Absent):
            return

    await together(8, delete)
    expect_equal(len(won), 1, "the number of deletions that succeeded")
    expect_equal(len(await store.document_history(key)), 2, "the number of revisions")


async def a_repeated_deletion_or_move_commits_once(store: Any) -> None:
    key, author = _key(), Author(request=fresh("request"))
    await store.write_document(key, "one")
    deletion = await store.delete_document(key, author=author)
    await store.write_document(key, "two")
    expect_equal(await store.delete_document(key, author=author), deletion, "the answer to the retry of a deletion")
    expect((await store.read_document(key)) is not None, "the retry of a deletion deleted a newer document")
    if callable(getattr(store, "move_document", None)):
        again = Author(request=fresh("request"))
        moved = await store.move_document(key, DocumentName("memories/other.md"), author=again)
        repeated = await store.move_document(key, DocumentName("memories/other.md"), author=again)
        expect_equal(repeated, moved, "the answer to the retry of a move")


async def a_name_is_a_document_or_a_directory_but_not_both(store: Any) -> None:
    key = _key("memories/projects/plan.md")
    await store.write_document(key, "one")
    for name in ("memories", "memories/projects", "memories/projects/plan.md/part.md"):
        try:
            await store.write_document(replace(key, name=DocumentName(name)), "clash")
        except NameTaken:
            continue
        expect(False, f"{name} was created beside {key.name}")
    expect_equal(await _names(store, key), [key.name], "the names listed")
    await store.delete_document(key)
    await store.write_document(replace(key, name=DocumentName("memories")), "a document now")
    expect_equal(await _names(store, key), ["memories"], "the names listed after the directory became a document")


async def concurrent_creates_of_a_document_and_its_directory_do_not_both_win(store: Any) -> None:
    key, won = _key("memories"), []

    async def create(number: int) -> None:
        name = DocumentName("memories" if number % 2 else f"memories/{number}.md")
        try:
            await store.write_document(replace(key, name=name), f"by {number}")
        except NameTaken:
            return
        won.append(name)

    await together(8, create)
    is_document, is_directory = "memories" in won, any("/" in name for name in won)
    expect(is_document != is_directory, f"these were all created: {sorted(won)}")
    expect_equal(await _names(store, key), sorted(set(won)), "the names listed")


async def a_prefix_selects_the_names_that_start_with_it(store: Any) -> None:
    if "prefix" not in inspect.signature(store.list_documents).parameters:
        return  # optional
    key = _key()
    for name in ("NOTES.md", "memories/a.md", "memories/b/c.md", "memories.md"):
        await store.write_document(replace(key, name=DocumentName(name)), name)
    for prefix, wanted in (("memories/", ["memories/a.md", "memories/b/c.md"]), ("x", []), ("NOTES.md", ["NOTES.md"])):
        entries = await store.list_documents(key.tenant, key.owner, key.scope, prefix=prefix)
        expect_equal([str(e.key.name) for e in entries], wanted, f"the names that start with {prefix!r}")


async def a_move_is_a_deletion_and_a_new_revision_that_name_each_other(store: Any) -> None:
    key, to = _key(), DocumentName("archive/plan.md")
    first = await store.write_document(key, "the plan")
    moved = await store.move_document(key, to, expected=first.revision, author=Author("ann", reason="tidy"))
    expect_equal((moved.deletion.deleted, moved.deletion.moved), (True, to), "the deletion of the old name")
    expect_equal(await store.read_document(key), None, "the document under the old name")
    target = replace(key, name=to)
    expect_equal(await store.read_document(target), moved.document, "the document under the new name")
    expect_equal(moved.document.content, "the plan", "the text that was moved")
    expect_equal([r.moved for r in await store.document_history(target)], [key.name], "where the new one came from")
    expect_equal([r.actor for r in await store.document_history(key)], ["ann", "host"], "who changed the old one")
    expect_equal(await store.read_document(key, first.revision), first, "the old revision under the old name")
    expect_equal(await _names(store, key), [to], "the names listed after the move")


async def a_move_is_refused_if_it_is_stale_or_its_target_exists(store: Any) -> None:
    key = _key()
    other = replace(key, name=DocumentName("memories/other.md"))
    first = await store.write_document(key, "one")
    second = await store.write_document(key, "two")
    kept = await store.write_document(other, "kept")
    attempts: list[tuple[DocumentKey, str, int, type[Exception]]] = [
        (key, "memories/new.md", first.revision, RevisionConflict),
        (key, "memories/other.md", second.revision, NameTaken),
        (key, "memories/other.md/below.md", second.revision, NameTaken),
        (key, "memories", second.revision, NameTaken),
        (replace(key, name=DocumentName("memories/missing.md")), "memories/new.md", 1, Absent),
    ]
    for source, to, expected, error in attempts:
        try:
            await store.move_document(source, DocumentName(to), expected=expected)
        except error:
            continue
        expect(False, f"{source.name} was moved to {to}")
    expect_equal(await store.read_document(key), second, "the document after the refused moves")
    expect_equal(await store.read_document(other), kept, "the target after the refused moves")
    expect_equal(len(await store.document_history(key)), 2, "the number of its revisions")


async def a_document_moves_to_a_deleted_name_and_below_its_own(store: Any) -> None:
    key = _key("plan")
    await store.write_document(key, "one")
    below = await store.move_document(key, DocumentName("plan/part.md"))
    back = await store.move_document(replace(key, name=DocumentName("plan/part.md")), DocumentName("plan"))
    expect_equal((below.document.content, back.document.content), ("one", "one"), "the texts moved")
    expect(back.document.revision > below.deletion.revision, "the revision under the old name did not grow")
    expect_equal(await _names(store, key), ["plan"], "the names listed")


DELETION_PROMISES: tuple[Promise, ...] = (
    a_deleted_document_is_absent_keeps_its_history_and_can_be_restored,
    a_deleted_document_is_created_again_by_a_write_and_its_revisions_grow,
    a_write_based_on_a_deleted_revision_conflicts,
    a_stale_deletion_changes_nothing,
    one_of_several_concurrent_deletions_wins,
    a_repeated_deletion_or_move_commits_once,
    a_name_is_a_document_or_a_directory_but_not_both,
    concurrent_creates_of_a_document_and_its_directory_do_not_both_win,
    a_prefix_selects_the_names_that_start_with_it,
)
MOVE_PROMISES: tuple[Promise, ...] = (
    a_move_is_a_deletion_and_a_new_revision_that_name_each_other,
    a_move_is_refused_if_it_is_stale_or_its_target_exists,
    a_document_moves_to_a_deleted_name_and_below_its_own,
)
