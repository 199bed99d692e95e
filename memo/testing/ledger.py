"""What the consolidation ledger promises: leases with a fence, pending users, and runs settled atomically.

The store under test has sessions and revisioned documents too. It uses its own clock, so the checks take short leases
and wait for them to expire. The content of standing and memory is not checked.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import anyio

from memo.documents import ABSENT, USER, Author, DocumentKey, Expected
from memo.errors import RevisionConflict
from memo.ids import SessionId, UserRef
from memo.leases import Held, Lease, LeaseLost
from memo.ledger import DocumentChange, Settlement, require_ledger
from memo.testing.promises import Factory, Promise, expect, expect_equal, fresh, keep, made, together
from memo.testing.records import RECORD_PROMISES
from memo.testing.sessions import said

LONG_S = 600.0
SHORT_S = 0.2
MARGIN_S = 0.05


async def check_ledger(make: Factory) -> None:
    """Check the ledger and the records that cache summaries: everything consolidation needs from a store."""
    async with made(make) as store:
        require_ledger(store)
    await keep(make, LEDGER_PROMISES)
    await keep(make, RECORD_PROMISES)


def _user(tenant: str | None = None) -> UserRef:
    return UserRef.of(tenant or fresh("t"), fresh("u"))


async def _talk(store: Any, user: UserRef, *texts: str, session: str | None = None) -> SessionId:
    name = session or fresh("s")
    await store.get_or_create(user.tenant, user.user, "agent-1", name)
    await store.append_messages(user.tenant, name, [said(text) for text in texts])
    return SessionId(name)


async def _take(store: Any, user: UserRef, holder: str = "one", ttl_s: float = LONG_S) -> Lease:
    granted = await store.acquire_lease(user, holder, ttl_s)
    expect(isinstance(granted, Lease), f"a free lease was not granted to {holder}")
    lease: Lease = granted
    return lease


async def _outlast(lease: Lease) -> None:
    """Wait until the lease has expired by the store's clock, which is close to this machine's."""
    left_s = (lease.expires_at - datetime.now(UTC)).total_seconds()
    await anyio.sleep(max(left_s, 0) + MARGIN_S)


async def _pending(store: Any, user: UserRef) -> int:
    return sum(pending.changed for pending in await store.list_pending() if pending.user == user)


async def _page(store: Any, user: UserRef) -> str | None:
    text: str | None = await store.read_memory_document(user.tenant, user.user, "user", USER)
    return text


def _settlement(user: UserRef, text: str, expected: Expected = ABSENT, **settled: int) -> Settlement:
    key = DocumentKey.of_user(user.tenant, user.user, USER)
    change = DocumentChange(key, text, expected, Author("consolidation", reason="1 new"))
    revisions = {SessionId(session): revision for session, revision in settled.items()}
    return Settlement({"runs": 1}, {"written": ["line"]}, revisions, change)


async def _expect_lost(store: Any, lease: Lease, user: UserRef, when: str) -> None:
    try:
        await store.settle(lease, _settlement(user, "late"))
    except LeaseLost:
        return
    expect(False, f"a settlement was accepted {when}")


async def a_lease_has_one_holder_and_every_grant_a_higher_token(store: Any) -> None:
    user = _user()
    first = await _take(store, user)
    held = await store.acquire_lease(user, "two", LONG_S)
    expect_equal(held, Held(user, "one", first.expires_at), "the answer to the second holder")
    expect(
        isinstance(await store.acquire_lease(user, "one", LONG_S), Held), "the lease was granted to its holder again"
    )
    for other in (_user(user.tenant), UserRef.of(fresh("t"), user.user)):
        await _take(store, other, "two")
    await store.release_lease(first)
    second = await _take(store, user, "two")
    expect(second.token > first.token, f"token {second.token} after {first.token}")


async def one_of_many_concurrent_requests_is_granted(store: Any) -> None:
    user, granted = _user(), []

    async def ask(number: int) -> None:
        answer = await store.acquire_lease(user, f"holder-{number}", LONG_S)
        if isinstance(answer, Lease):
            granted.append(answer)

    await together(10, ask)
    expect_equal(len(granted), 1, "the number of leases granted to 10 concurrent requests")


async def a_lease_expires_unless_it_is_renewed(store: Any) -> None:
    user, other = _user(), _user()
    kept = await store.renew_lease(await _take(store, user, ttl_s=SHORT_S), LONG_S)
    over = await _take(store, other, ttl_s=SHORT_S)
    await _outlast(over)
    expect(isinstance(await store.acquire_lease(user, "two", LONG_S), Held), "a renewed lease ended too early")
    try:
        await store.renew_lease(over, LONG_S)
    except LeaseLost:
        pass
    else:
        expect(False, "a lease was renewed after it had expired")
    taken = await _take(store, other, "two")
    expect(taken.token > over.token, f"token {taken.token} after {over.token}")
    expect(kept.expires_at > over.expires_at, "renewing did not extend the lease")


async def a_released_lease_is_free_and_releasing_it_again_frees_no_other(store: Any) -> None:
    user = _user()
    lease = await _take(store, user)
    await store.release_lease(lease)
    try:
        await store.renew_lease(lease, LONG_S)
    except LeaseLost:
        pass
    else:
        expect(False, "a released lease was renewed")
    await _take(store, user, "two")
    await store.release_lease(lease)
    expect(isinstance(await store.acquire_lease(user, "three", LONG_S), Held), "the second holder lost its lease")


async def a_late_settlement_is_refused_and_changes_nothing(store: Any) -> None:
    user = _user()
    session = await _talk(store, user, "hello")
    stalled = await _take(store, user, ttl_s=SHORT_S)
    await _outlast(stalled)
    await _expect_lost(store, stalled, user, "after its lease had ended")
    next_one = await _take(store, user, "two")
    await _expect_lost(store, stalled, user, "while another holder had the lease")
    entry = await store.read_ledger(user)
    expect_equal((entry.standing, entry.memory, entry.changed), ({}, {}, 1), "the ledger after the late settlements")
    expect(await _page(store, user) is None, "a late document was written")
    await store.settle(next_one, _settlement(user, "on time", **{session: 1}))
    expect_equal(await _page(store, user), "on time", "the document")


async def a_settlement_is_atomic(store: Any) -> None:
    user = _user()
    session = await _talk(store, user, "hello")
    await store.write_memory_document(user.tenant, user.user, "user", USER, "by hand")
    lease = await _take(store, user)
    seen = 0
    try:
        await store.settle(lease, _settlement(user, "generated", **{session: 1}))
    except RevisionConflict as error:
        expect(error.current is not None and error.current.content == "by hand", "the conflict holds another text")
        seen = error.current.revision if error.current else 0
    else:
        expect(False, "a document written in the meantime was overwritten")
    entry = await store.read_ledger(user)
    expect_equal((entry.standing, entry.memory, entry.changed), ({}, {}, 1), "the ledger after a conflict")
    written = await store.settle(lease, _settlement(user, "both", seen, **{session: 1}))
    expect_equal(written.content, "both", "the document returned")
    (newest, *_) = await store.document_history(DocumentKey.of_user(user.tenant, user.user, USER), 1)
    expect_equal((newest.revision, newest.actor), (written.revision, "consolidation"), "the newest revision")
    entry = await store.read_ledger(user)
    expect_equal((entry.standing, entry.memory), ({"runs": 1}, {"written": ["line"]}), "standing and memory")
    expect_equal(entry.changed, 0, "the number of pending sessions")
    nothing = await store.settle(lease, Settlement({"runs": 2}))
    entry = await store.read_ledger(user)
    expect(nothing is None, "a settlement without a document returned one")
    expect_equal((entry.standing, entry.memory), ({"runs": 2}, {"written": ["line"]}), "standing and memory kept")


async def a_session_is_pending_from_its_message_until_that_revision_is_settled(store: Any) -> None:
    user = _user()
    await store.get_or_create(user.tenant, user.user, "agent-1", fresh("empty"))
    expect_equal(await _pending(store, user), 0, "the number of pending sessions of a user without messages")
    first, second = await _talk(store, user, "one", "two"), await _talk(store, user, "one")
    found = {one.session: (one.revision, one.is_pending) for one in await store.list_session_revisions(user)}
    expect_equal(found, {first: (2, True), second: (1, True)}, "revisions and what is pending")
    lease = await _take(store, user)
    await _talk(store, user, "three", session=first)
    await store.settle(lease, _settlement(user, "page", **{first: 2, second: 1}))
    found = {one.session: (one.revision, one.is_pending) for one in await store.list_session_revisions(user)}
    expect_equal(found, {first: (3, True), second: (1, False)}, "what is pending after settling")
    expect_equal(await _pending(store, user), 1, "the number of pending sessions in a scan")


async def a_scan_returns_every_pending_user_and_their_standing(store: Any) -> None:
    tenant = fresh("t")
    settled, waiting = _user(tenant), _user(tenant)
    session = await _talk(store, settled, "hello")
    await store.settle(await _take(store, settled), _settlement(settled, "page", **{session: 1}))
    before = datetime.now(UTC)
    await _talk(store, waiting, "hello")
    await _talk(store, settled, "more", session=session)
    found = {one.user: one for one in await store.list_pending() if one.user.tenant == tenant}
    expect_equal(set(found), {settled, waiting}, "the pending users")
    expect_equal((found[settled].standing, found[waiting].standing), ({"runs": 1}, {}), "their standings")
    expect((found[waiting].last_activity - before).total_seconds() > -1, "the last activity is too old")
    expect_equal(await store.list_standings(tenant), [(settled, {"runs": 1})], "the standings of the tenant")
    expect(settled in dict(await store.list_standings()), "the standings of all tenants lack one")
    expect_equal(await store.list_standings(fresh("t")), [], "the standings of another tenant")


async def an_unknown_user_has_an_empty_entry(store: Any) -> None:
    entry = await store.read_ledger(_user())
    expect_equal((entry.standing, entry.memory, entry.changed), ({}, {}, 0), "the entry")
    expect(entry.last_activity is None and entry.lease is None, "an unknown user has a lease or activity")
    expect_equal(await store.list_session_revisions(_user()), [], "the sessions")


async def compaction_does_not_change_a_revision(store: Any) -> None:
    user = _user()
    session = await _talk(store, user, *(f"message {number}" for number in range(20)))
    await store.settle(await _take(store, user), _settlement(user, "page", **{session: 20}))
    await store.compact_if_needed(user.tenant, session, lambda _: "a summary", force=True)
    (found,) = await store.list_session_revisions(user)
    expect_equal((found.revision, found.is_pending), (20, False), "revision and pending after a compaction")


LEASE_PROMISES: tuple[Promise, ...] = (
    a_lease_has_one_holder_and_every_grant_a_higher_token,
    one_of_many_concurrent_requests_is_granted,
    a_lease_expires_unless_it_is_renewed,
    a_released_lease_is_free_and_releasing_it_again_frees_no_other,
)
LEDGER_PROMISES: tuple[Promise, ...] = (
    *LEASE_PROMISES,
    a_late_settlement_is_refused_and_changes_nothing,
    a_settlement_is_atomic,
    a_session_is_pending_from_its_message_until_that_revision_is_settled,
    a_scan_returns_every_pending_user_and_their_standing,
    an_unknown_user_has_an_empty_entry,
    compaction_does_not_change_a_revision,
)
