"""What revisions promise: they only grow, a stale write never wins, and old revisions stay readable.

Only for stores that have revisions.
"""

from __future__ import annotations

from typing import Any

from memo.documents import ABSENT, Author, DocumentKey, sha256_of
from memo.errors import Absent, MemoError, Redacted, RevisionConflict
from memo.ids import OwnerId, SessionId, TenantId
from memo.testing.promises import Promise, expect, expect_equal, fresh, together


def _key(name: str = "NOTES.md") -> DocumentKey:
    return DocumentKey.of(fresh("t"), fresh("s"), "session", name)


async def every_write_is_a_new_and_greater_revision(store: Any) -> None:
    key, last = _key(), 0
    for text in ("one", "two", "two", ""):
        document = await store.write_document(key, text)
        expect(document.revision > last, f"revision {document.revision} after {last}")
        last = document.revision
        expect_equal(document.sha256, sha256_of(text.encode()), "its sha256")
        expect_equal(await store.read_document(key), document, "the document read")
    appended = await store.append_document(key, "more")
    expect(appended.revision > last, f"revision {appended.revision} after {last}")
    expect_equal(appended.content, "more", "the appended text")


async def a_stale_write_raises_a_conflict_that_holds_the_newer_text(store: Any) -> None:
    key = _key()
    first = await store.write_document(key, "one")
    second = await store.write_document(key, "two", expected=first.revision)
    for expected in (first.revision, second.revision + 7, ABSENT):
        try:
            await store.write_document(key, "stale", expected=expected)
        except RevisionConflict as error:
            expect_equal(error.current, second, "the document in the conflict")
        else:
            expect(False, f"a write that expected {expected} was accepted")
    expect_equal(await store.read_document(key), second, "the document after the refused writes")


async def one_of_several_concurrent_creates_wins(store: Any) -> None:
    key, won = _key(), []

    async def create(number: int) -> None:
        try:
            won.append(await store.write_document(key, f"by {number}", expected=ABSENT))
        except RevisionConflict:
            return

    await together(10, create)
    expect_equal(len(won), 1, "the number of winners among 10 creators")
    expect_equal(await store.read_document(key), won[0], "the document")
    try:
        await store.write_document(_key(), "text", expected=1)
    except RevisionConflict as error:
        expect(error.current is None, "the conflict of a missing document holds one")
    else:
        expect(False, "a write that expected revision 1 of a missing document was accepted")


async def compare_and_swap_loses_no_update(store: Any) -> None:
    key = _key()
    await store.write_document(key, "0")

    async def add_one(_: int) -> None:
        for _ in range(5):
            while True:
                document = await store.read_document(key)
                try:
                    await store.write_document(key, str(int(document.content) + 1), expected=document.revision)
                except RevisionConflict:
                    continue
                break

    await together(8, add_one)
    expect_equal((await store.read_document(key)).content, "40", "a counter after 40 increments")


async def a_repeated_request_commits_one_revision(store: Any) -> None:
    key = _key()
    author = Author(request=fresh("request"))
    first = await store.write_document(key, "one", author=author)
    await store.write_document(key, "two")
    expect_equal(await store.write_document(key, "one", author=author), first, "the answer to the retry")
    expect_equal((await store.read_document(key)).content, "two", "the text after the retry")
    again = Author(request=fresh("request"))
    await store.append_document(key, "+", author=again)
    await store.append_document(key, "+", author=again)
    expect_equal((await store.read_document(key)).content, "two+", "the text after an append and its retry")


async def a_request_is_found_by_its_id_without_a_write(store: Any) -> None:
    if not callable(getattr(store, "find_request", None)):
        return  # optional
    key, request = _key(), fresh("request")
    expect_equal(await store.find_request(key, request), None, "a request for a document never written")
    first = await store.write_document(key, "one", author=Author(request=request))
    await store.write_document(key, "two")
    expect_equal(await store.find_request(key, request), first, "the revision of the request")
    expect_equal(await store.find_request(key, fresh("request")), None, "the revision of an unknown request")
    expect_equal(await store.find_request(_key(), request), None, "the revision of the request in another document")
    expect_equal((await store.read_document(key)).revision, 2, "the newest revision after the searches")


async def the_list_of_documents_is_complete_and_correct(store: Any) -> None:
    tenant, owner = TenantId(fresh("t")), OwnerId(fresh("s"))
    for name in ("TODO.md", "NOTES.md", "plan.txt"):
        await store.write_document(DocumentKey.of(tenant, owner, "session", name), f"# About {name}\n\ntext")
    await store.write_document(DocumentKey.of(tenant, owner, "user", "USER.md"), "other scope")
    await store.write_document(DocumentKey.of(tenant, fresh("s"), "session", "OTHER.md"), "other owner")
    key = DocumentKey.of(tenant, owner, "session", "NOTES.md")
    newest = await store.write_document(key, "# Second\n")
    entries = await store.list_documents(tenant, owner, key.scope)
    expect_equal([e.key.name for e in entries], ["NOTES.md", "TODO.md", "plan.txt"], "the names")
    entry = entries[0]
    expect_equal((entry.revision, entry.sha256), (newest.revision, newest.sha256), "revision and sha256")
    expect_equal((entry.size_bytes, entry.summary), (9, "Second"), "size and summary")


async def history_is_complete_and_newest_first(store: Any) -> None:
    key = _key()
    session = SessionId(fresh("s"))
    expect_equal(await store.document_history(key), [], "the history of a missing document")
    written = [
        await store.write_document(key, f"text {n}", author=Author(f"actor-{n}", session, f"because {n}"))
        for n in range(5)
    ]
    seen = await store.document_history(key)
    expect_equal([r.revision for r in seen], [d.revision for d in reversed(written)], "the revisions")
    expect_equal([r.sha256 for r in seen], [d.sha256 for d in reversed(written)], "the hashes")
    expect_equal([r.actor for r in seen], [f"actor-{n}" for n in range(4, -1, -1)], "the actors")
    expect_equal([r.reason for r in seen], [f"because {n}" for n in range(4, -1, -1)], "the reasons")
    expect_equal({r.session for r in seen}, {session}, "the sessions")
    times = [r.at for r in reversed(seen)]
    expect(times == sorted(times) and times[0].tzinfo is not None, "times are not in order, or have no time zone")
    expect_equal(await store.document_history(key, 2), seen[:2], "the newest two")


async def an_old_revision_stays_readable_and_can_be_restored(store: Any) -> None:
    key = _key()
    old = await store.write_document(key, "a\nb\n")
    new = await store.write_document(key, "a\nc\n")
    expect_equal(await store.read_document(key, old.revision), old, "the old revision")
    expect(await store.read_document(key, new.revision + 100) is None, "a revision that does not exist is not None")
    diff = await store.diff_document(key, old.revision, new.revision)
    expect("-b\n" in diff and "+c\n" in diff, f"the diff is {diff!r}")
    restored = await store.restore_document(key, old.revision)
    expect(restored.revision > new.revision, f"restoring made revision {restored.revision}")
    expect_equal((await store.read_document(key)).content, "a\nb\n", "the restored text")
    for verb in (store.restore_document, store.redact_document):
        try:
            await verb(key, restored.revision + 100)
        except Absent:
            continue
        expect(False, f"{verb.__name__} of a revision that does not exist was accepted")


async def a_redacted_revision_is_erased_and_raises_redacted(store: Any) -> None:
    key = _key()
    secret = await store.write_document(key, "the secret is 42")
    twin = await store.append_document(key, "")
    try:
        await store.redact_document(key, secret.revision)
    except MemoError:
        expect_equal((await store.read_document(key)).content, "the secret is 42", "the newest text")
    else:
        expect(False, "the text of the newest revision was redacted")
    newest = await store.write_document(key, "clean")
    gone = await store.redact_document(key, secret.revision)
    expect_equal(sorted(gone), [secret.revision, twin.revision], "the revisions redacted")
    for revision in gone:
        try:
            await store.read_document(key, revision)
        except Redacted:
            continue
        expect(False, f"revision {revision} can still be read")
    expect_equal(await store.read_document(key), newest, "the newest document")
    seen = {r.revision: r.redacted for r in await store.document_history(key)}
    expect_equal(seen, {secret.revision: True, twin.revision: True, newest.revision: False}, "what history says")


REVISION_PROMISES: tuple[Promise, ...] = (
    every_write_is_a_new_and_greater_revision,
    a_stale_write_raises_a_conflict_that_holds_the_newer_text,
    one_of_several_concurrent_creates_wins,
    compare_and_swap_loses_no_update,
    a_repeated_request_commits_one_revision,
    a_request_is_found_by_its_id_without_a_write,
)
LISTING_PROMISES: tuple[Promise, ...] = (the_list_of_documents_is_complete_and_correct,)
HISTORY_PROMISES: tuple[Promise, ...] = (
    history_is_complete_and_newest_first,
    an_old_revision_stays_readable_and_can_be_restored,
    a_redacted_revision_is_erased_and_raises_redacted,
)
