"""The service on every store: when it runs, what it writes, and what it must not touch."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from memo.consolidation import (
    Budget,
    Bullet,
    ConsolidationSettings,
    Outcome,
    Part,
    ProfileDraft,
    Progress,
    RunResult,
    Settlement,
    Source,
    Why,
)
from memo.consolidation.summarisers import BadAnswer, ProfileRequest, SummariserUnavailable
from memo.consolidation.transcript import Transcript
from memo.documents import USER, Document, DocumentKey
from memo.ids import SessionId, UserRef
from memo.leases import Lease
from memo.stores import BaseStore
from tests.memo.consolidation.scenes import ANN, AnyStore, Clock, Scripted, page, say, service_of, write_page

pytestmark = pytest.mark.anyio

BOB = UserRef.of("acme", "bob")
KEY = DocumentKey.of_user(ANN.tenant, ANN.user, USER)


def outcomes(results: list[RunResult]) -> dict[str, Outcome]:
    return {str(result.user): result.outcome for result in results}


# Specification: 001.34
async def test_a_user_is_run_once_idle_and_again_only_after_a_change(store: BaseStore, clock: Clock) -> None:
    service = service_of(store, clock)
    await say(store, "s1", "I prefer short answers.")
    assert await service.run_once() == []
    clock.advance(minutes=10)
    (result,) = await service.run_once()
    assert (result.outcome, result.why, result.revision, result.sessions) == (Outcome.WRITTEN, Why.FIRST, 1, ("s1",))
    assert "+- Prefers short answers <!-- from s1#1 -->" in result.diff
    clock.advance(days=3)
    assert await service.run_once() == []
    await say(store, "s1", "I like graphs.")
    clock.advance(minutes=10)
    (again,) = await service.run_once()
    assert (again.why, again.revision) == (Why.AGE, 2)


async def test_five_changed_sessions_make_a_user_due(store: BaseStore, clock: Clock) -> None:
    service = service_of(store, clock)
    await say(store, "s0", "I prefer short answers.")
    await service.consolidate("acme", "ann")
    for number in range(1, 6):
        clock.advance(minutes=10)
        assert await service.run_once() == []
        await say(store, f"s{number}", f"I like topic{number}.")
    clock.advance(minutes=10)
    (result,) = await service.run_once()
    assert (result.why, len(result.sessions)) == (Why.SESSIONS, 6)


async def test_a_busy_user_is_not_run(store: BaseStore, clock: Clock) -> None:
    await say(store, "s1", "I prefer short answers.")
    clock.advance(hours=1)
    busy = {ANN}
    service = service_of(store, clock, is_busy=lambda user: user in busy)
    assert await service.run_once() == []
    busy.clear()
    assert outcomes(await service.run_once()) == {"acme:ann": Outcome.WRITTEN}


async def test_archived_messages_are_read_too(store: BaseStore, clock: Clock) -> None:
    await say(store, "s1", "I prefer short answers.", *(f"message {n}" for n in range(30)))
    await store.compact_if_needed("acme", "s1", lambda _: "they talked", force=True)
    await service_of(store, clock).consolidate("acme", "ann")
    assert "- Prefers short answers <!-- from s1#1 -->" in await page(store)


async def test_a_session_is_summarised_once_for_each_revision(store: BaseStore, clock: Clock) -> None:
    summariser = Scripted()
    service = service_of(store, clock, summariser)
    await say(store, "s1", "I prefer short answers.")
    await say(store, "s2", "I like graphs.")
    await service.consolidate("acme", "ann")
    await service.consolidate("acme", "ann")
    assert sorted(summariser.sessions) == ["s1", "s2"]
    await say(store, "s2", "I like maps.")
    await service.consolidate("acme", "ann")
    assert sorted(summariser.sessions) == ["s1", "s2", "s2"]


async def test_a_human_edit_during_a_slow_run_survives_unchanged(store: BaseStore, clock: Clock) -> None:
    by_hand = "My own words,   with odd  spaces.\n\n## Avoid\n\n- mornings\n"

    async def edit_meanwhile(request: ProfileRequest, budget: Budget) -> None:
        await write_page(store, by_hand)

    await say(store, "s1", "I prefer short answers.")
    summariser = Scripted(on_profile=edit_meanwhile)
    result = await service_of(store, clock, summariser).consolidate("acme", "ann")
    text = await page(store)
    assert (result.outcome, result.revision) == (Outcome.WRITTEN, 2)
    assert "My own words,   with odd  spaces.\n" in text
    assert "- mornings\n" in text
    assert "- Prefers short answers <!-- from s1#1 -->" in text


async def test_an_edit_between_read_and_write_is_merged_not_overwritten(
    store: BaseStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer changes the page just before the commit, five consecutive times."""
    settle: Any = store.settle  # type: ignore[attr-defined]
    edits = 0

    async def settle_late(lease: Any, settlement: Any) -> Any:
        nonlocal edits
        if edits < 5:
            edits += 1
            await store.append_memory_document("acme", "ann", "user", USER, f"edit {edits}\n")
        return await settle(lease, settlement)

    monkeypatch.setattr(store, "settle", settle_late)
    await say(store, "s1", "I prefer short answers.")
    result = await service_of(store, clock).consolidate("acme", "ann")
    text = await page(store)
    assert result.revision == 6
    assert [line for line in text.split("\n") if line.startswith("edit")] == [f"edit {n}" for n in range(1, 6)]
    assert "Prefers short answers" in text


async def test_hand_written_sections_survive_twenty_runs(store: BaseStore, clock: Clock) -> None:
    mine = "## Mine\n\n* kept\t\n\n      as  it is\n"
    await write_page(store, mine)
    service = service_of(store, clock)
    for number in range(20):
        clock.advance(minutes=1)
        await say(store, f"s{number % 7}", f"I like subject{number}. I prefer thing{number}.")
        assert (await service.consolidate("acme", "ann")).outcome is Outcome.WRITTEN
    assert mine in await page(store)


async def test_a_dry_run_shows_the_diff_and_changes_nothing(store: AnyStore, clock: Clock) -> None:
    summariser = Scripted()
    service = service_of(store, clock, summariser)
    await say(store, "s1", "I prefer short answers.")
    for _ in range(2):
        result = await service.consolidate("acme", "ann", dry_run=True)
        assert (result.outcome, result.is_dry, result.revision) == (Outcome.WRITTEN, True, 1)
        assert "+- Prefers short answers" in result.diff
    assert summariser.sessions == ["s1", "s1"], "a dry run keeps no summary"
    assert await page(store) == ""
    entry = await store.read_ledger(ANN)
    assert (entry.changed, entry.standing, entry.lease) == (1, {}, None)


async def test_sessions_without_facts_are_settled_without_a_page(store: BaseStore, clock: Clock) -> None:
    await say(store, "s1", "hello", "thanks")
    clock.advance(hours=1)
    service = service_of(store, clock)
    assert outcomes(await service.run_once()) == {"acme:ann": Outcome.NOTHING}
    assert await store.read_document(KEY) is None
    assert await service.run_once() == []


async def test_a_session_that_always_fails_backs_off_without_stopping_others(store: BaseStore, clock: Clock) -> None:
    async def fail_for_bad(transcript: Transcript, budget: Budget) -> None:
        if transcript.session == "bad":
            raise BadAnswer("cannot use the answer: it is not valid JSON")

    summariser = Scripted(fail_for_bad)
    service = service_of(store, clock, summariser)
    await say(store, "good", "I prefer short answers.")
    await say(store, "bad", "I like graphs.")
    await say(store, "other", "I like maps.", user="bob")
    clock.advance(hours=1)
    results = await service.run_once()
    assert outcomes(results) == {"acme:ann": Outcome.WRITTEN, "acme:bob": Outcome.WRITTEN}
    assert "Prefers short answers" in await page(store)
    (ann,) = [state for state in await service.status() if state.is_failing]
    failure = ann.standing.sessions[SessionId("bad")]
    assert (ann.user, failure.count, failure.reason) == (ANN, 1, "cannot use the answer: it is not valid JSON")
    assert await service.run_once() == [], "it backs off"
    clock.advance(minutes=1)
    (retried,) = await service.run_once()
    assert (retried.why, retried.failed) == (Why.RETRY, (("bad", failure.reason),))
    pauses = []
    for _ in range(4):
        (ann,) = [state for state in await service.status() if state.is_failing]
        rest = ann.standing.sessions[SessionId("bad")].retry_at - clock.now
        pauses.append(rest / timedelta(minutes=1))
        clock.now += rest
        await service.run_once()
    assert pauses == [2, 4, 8, 16]
    assert summariser.sessions.count("good") == 1


async def test_a_failure_for_one_user_does_not_delay_others(store: BaseStore, clock: Clock) -> None:
    async def fail_for_ann(transcript: Transcript, budget: Budget) -> None:
        if transcript.session.startswith("ann"):
            raise SummariserUnavailable("cannot use the summariser: the endpoint answered 503", retry_after_s=900)

    service = service_of(store, clock, Scripted(fail_for_ann))
    for name in ("ann", "bob", "cem", "dan"):
        await say(store, f"{name}-1", "I prefer short answers.", user=name)
    clock.advance(hours=1)
    found = outcomes(await service.run_once())
    assert found.pop("acme:ann") is Outcome.FAILED
    assert set(found.values()) == {Outcome.WRITTEN}
    state = await service.state("acme", "ann")
    assert state.standing.failure is not None
    assert (state.why, state.standing.failure.reason) == (
        Why.BACKING_OFF,
        "cannot use the summariser: the endpoint answered 503",
    )
    assert state.look_again_at == clock.now + timedelta(seconds=900), "not before the summariser allows it"
    assert await page(store) == ""
    clock.advance(minutes=16)
    assert outcomes(await service.run_once()) == {"acme:ann": Outcome.FAILED}


async def test_a_third_party_error_fails_its_user_and_its_text_is_not_kept(store: BaseStore, clock: Clock) -> None:
    async def explode(request: ProfileRequest, budget: Budget) -> None:
        raise ValueError("the user said: secret")

    await say(store, "s1", "I prefer short answers.")
    result = await service_of(store, clock, Scripted(on_profile=explode)).consolidate("acme", "ann")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "cannot continue: ValueError")


async def test_an_empty_or_much_smaller_profile_is_refused_with_the_reason(store: BaseStore, clock: Clock) -> None:
    await say(store, "s1", *(f"I like topic{n}." for n in range(8)))
    assert (await service_of(store, clock).consolidate("acme", "ann")).outcome is Outcome.WRITTEN
    before = await page(store)

    async def empty(request: ProfileRequest, budget: Budget) -> ProfileDraft:
        return ProfileDraft("nothing", ())

    async def small(request: ProfileRequest, budget: Budget) -> ProfileDraft:
        return ProfileDraft("one", (Bullet(Part.AVOID, "Likes topic1", (Source(SessionId("s1"), 1),)),))

    for answer, reason in ((empty, "it is empty"), (small, "1 bullets and the current one has 8")):
        result = await service_of(store, clock, Scripted(on_profile=answer)).consolidate("acme", "ann")
        assert result.outcome is Outcome.REFUSED
        assert reason in result.reason
        assert await page(store) == before
        state = await service_of(store, clock).state("acme", "ann")
        assert state.standing.failure is not None
        assert reason in state.standing.failure.reason


async def test_a_run_stopped_by_its_budget_is_continued_by_the_next(store: BaseStore, clock: Clock) -> None:
    async def cost(transcript: Transcript, budget: Budget) -> None:
        budget.begin_call(10)
        budget.end_call(10)

    summariser = Scripted(cost)
    settings = ConsolidationSettings(run_calls=4)
    service = service_of(store, clock, summariser, settings)
    for number in range(10):
        await say(store, f"s{number}", f"I like topic{number}.")
    clock.advance(hours=1)
    runs = []
    for _ in range(3):
        (result,) = await service.run_once()
        runs.append((result.why, result.calls, len(result.sessions)))
    assert runs == [(Why.FIRST, 4, 4), (Why.UNFINISHED, 4, 8), (Why.UNFINISHED, 2, 10)]
    assert len(summariser.sessions) == len(set(summariser.sessions)) + 2, "two calls found the budget exhausted"
    assert await service.run_once() == []
    assert (await page(store)).count("- Likes topic") == 10


async def test_users_beyond_the_budget_of_a_scan_are_postponed(store: BaseStore, clock: Clock) -> None:
    async def cost(transcript: Transcript, budget: Budget) -> None:
        budget.begin_call(100)
        budget.end_call(100)

    service = service_of(store, clock, Scripted(cost), ConsolidationSettings(scan_tokens=250))
    for name in ("ann", "bob", "cem", "dan"):
        await say(store, f"{name}-1", "I prefer short answers.", user=name)
    clock.advance(hours=1)
    first = list(outcomes(await service.run_once()).values())
    assert sorted(first) == [Outcome.POSTPONED, Outcome.POSTPONED, Outcome.WRITTEN, Outcome.WRITTEN]
    assert sorted(outcomes(await service.run_once()).values()) == [Outcome.WRITTEN, Outcome.WRITTEN]


async def test_a_run_that_takes_too_long_is_cancelled_and_backs_off(store: BaseStore, clock: Clock) -> None:
    async def hang(request: ProfileRequest, budget: Budget) -> None:
        await anyio.sleep_forever()

    await say(store, "s1", "I prefer short answers.")
    service = service_of(store, clock, Scripted(on_profile=hang), ConsolidationSettings(run_timeout_s=0.2))
    result = await service.consolidate("acme", "ann")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "cannot finish within 0.2 s")
    assert (await service.state("acme", "ann")).why is Why.BACKING_OFF


async def test_any_revision_can_be_restored_and_missing_bullets_stay_deleted(store: BaseStore, clock: Clock) -> None:
    service = service_of(store, clock)
    await say(store, "s1", "I prefer short answers.")
    await service.consolidate("acme", "ann")
    first = await page(store)
    await say(store, "s2", "I like graphs.")
    await service.consolidate("acme", "ann")
    assert "Likes graphs" in await page(store)
    restored = await service.restore("acme", "ann", 1)
    assert (restored.revision, restored.content) == (3, first)
    await service.consolidate("acme", "ann")
    assert "- Likes graphs" not in await page(store)
    assert "- Prefers short answers" in await page(store)


# Specification: 001.76
async def test_the_mirrors_are_refreshed_and_a_broken_one_does_not_fail_the_run(store: BaseStore, clock: Clock) -> None:
    class Mirrors:
        def __init__(self) -> None:
            self.told: list[tuple[str, ...]] = []

        async def refresh_user_memo_mirror_for_all_sessions(
            self, tenant: str, user: str, name: str, content: str
        ) -> None:
            self.told.append((tenant, user, name, content))
            raise OSError("the mirror is gone")

    mirrors = Mirrors()
    await say(store, "s1", "I prefer short answers.")
    service = service_of(store, clock, mirrors=mirrors)
    assert (await service.consolidate("acme", "ann")).outcome is Outcome.WRITTEN
    await service.consolidate("acme", "ann")
    assert mirrors.told == [("acme", "ann", USER, await page(store))]


async def test_a_run_uses_the_document_that_its_write_returned(
    store: BaseStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def recorded(name: str) -> None:
        original: Any = getattr(store, name)

        async def call(*args: Any, **named: Any) -> Any:
            calls.append(name)
            return await original(*args, **named)

        monkeypatch.setattr(store, name, call)

    class Mirrors:
        async def refresh_user_memo_mirror_for_all_sessions(self, *args: str) -> None:
            calls.append("refresh")
            shown.append(args[3])

    shown: list[str] = []
    await say(store, "s1", "I prefer short answers.")
    for name in ("read_document", "settle"):
        recorded(name)
    result = await service_of(store, clock, mirrors=Mirrors()).consolidate("acme", "ann")
    assert calls[-2:] == ["settle", "refresh"], "nothing is read between the write and the mirrors"
    assert result.document is not None
    assert (result.document.revision, result.document.content) == (1, await page(store))
    assert shown == [result.document.content]


async def test_every_settlement_goes_through_the_given_writer(
    store: BaseStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle: Any = store.settle  # type: ignore[attr-defined]
    settled: list[Settlement] = []

    async def forbidden(*_: Any) -> None:
        raise AssertionError("a settlement bypassed the writer")

    class Writer:
        async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
            settled.append(settlement)
            document: Document | None = await settle(lease, settlement)
            return document

    async def explode(request: ProfileRequest, budget: Budget) -> None:
        raise BadAnswer("cannot use the answer: it is not valid JSON")

    monkeypatch.setattr(store, "settle", forbidden)
    await say(store, "s1", "I prefer short answers.")
    assert (await service_of(store, clock, writer=Writer()).consolidate("acme", "ann")).outcome is Outcome.WRITTEN
    await say(store, "s1", "I like graphs.")
    failing = service_of(store, clock, Scripted(on_profile=explode), writer=Writer())
    assert (await failing.consolidate("acme", "ann")).outcome is Outcome.FAILED
    assert [settlement.document is not None for settlement in settled] == [True, False]


async def test_progress_reports_events_and_no_conversation_text(store: BaseStore, clock: Clock) -> None:
    told: list[Progress] = []
    await say(store, "s1", "I prefer short answers.")
    clock.advance(hours=1)
    await service_of(store, clock, observe=told.append).run_once()
    assert [p.kind for p in told] == ["scan", "started", "summarised", "finished"]
    assert told[0].total == 1
    assert (told[2].session, told[2].done, told[2].total) == ("s1", 1, 1)


async def test_a_damaged_ledger_entry_stops_only_its_user(store: AnyStore, clock: Clock) -> None:
    for name in ("ann", "bob"):
        await say(store, f"{name}-1", "I prefer short answers.", user=name)
    lease = await store.acquire_lease(ANN, "other", 1)
    assert isinstance(lease, Lease)
    await store.settle(lease, Settlement({"runs": "many"}))
    clock.advance(hours=1)
    assert outcomes(await service_of(store, clock).run_once()) == {"acme:bob": Outcome.WRITTEN}


async def test_a_run_for_an_unknown_user_leaves_no_trace(store: AnyStore, clock: Clock) -> None:
    result = await service_of(store, clock).consolidate("acme", "stranger")
    assert (result.outcome, result.reason) == (Outcome.NOTHING, "the user has no session with messages")
    assert await store.list_standings() == []
    assert (await store.read_ledger(UserRef.of("acme", "stranger"))).lease is None


async def test_all_users_can_be_run_at_once(store: BaseStore, clock: Clock) -> None:
    for name in ("ann", "bob"):
        await say(store, f"{name}-1", "I prefer short answers.", user=name)
    service = service_of(store, clock)
    assert outcomes(await service.run_once(everybody=True, dry_run=True)).keys() == {"acme:ann", "acme:bob"}
    assert await page(store) == ""
    assert set(outcomes(await service.run_once(everybody=True)).values()) == {Outcome.WRITTEN}
    assert outcomes(await service.run_once([BOB])) == {"acme:bob": Outcome.UNCHANGED}


async def test_a_profile_contains_nothing_from_another_user(store: BaseStore, clock: Clock) -> None:
    await say(store, "s1", "I prefer short answers.")
    await say(store, "s2", "I like graphs.", user="bob")
    await say(store, "s1", "I like maps.", tenant="other")
    await service_of(store, clock).run_once(everybody=True)
    texts = [await page(store, user) for user in (ANN, BOB, UserRef.of("other", "ann"))]
    for word, owner in (("short answers", 0), ("graphs", 1), ("maps", 2)):
        assert [word in text for text in texts] == [n == owner for n in range(3)]


async def test_a_correction_is_noted_once_in_the_history_and_in_the_reason(store: BaseStore, clock: Clock) -> None:
    service = service_of(store, clock)
    await say(store, "s1", "I'm a tech lead at Nordbank, based in Oslo. Never suggest unwrap() in production code.")
    await service.consolidate("acme", "ann")
    clock.advance(hours=1)
    await say(store, "s2", "We moved from Oslo to Bergen.")
    await service.consolidate("acme", "ann")
    await say(store, "s3", "I like walks.")
    await service.consolidate("acme", "ann")
    text = await page(store)
    noted = '"They moved from Oslo to Bergen" replaces "Is a tech lead at Nordbank, based in Oslo"'
    assert "- Is a tech lead at Nordbank <!-- from s1#1 -->" in text
    assert "- Asks to never suggest unwrap() in production code <!-- from s1#1 -->" in text
    assert text.count(noted) == 1
    assert f"UTC: {noted}\n" in text
    history = await store.document_history(DocumentKey.of_user(ANN.tenant, ANN.user, USER))
    assert [noted in (revision.reason or "") for revision in reversed(history)] == [False, True, False]
