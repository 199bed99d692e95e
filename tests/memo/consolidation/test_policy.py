"""When a user is due and why, as a table of cases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from memo.consolidation import Activity, Backoff, Failure, Policy, Standing, Why, decide
from memo.ids import SessionId

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
POLICY = Policy()
S1, S2 = SessionId("s1"), SessionId("s2")


def ago(**spans: float) -> datetime:
    return NOW - timedelta(**spans)


def activity(changed: int = 1, idle_min: float = 10, *, is_busy: bool = False) -> Activity:
    return Activity(changed, ago(minutes=idle_min) if changed else None, is_busy)


def failing(**retry_at: datetime) -> dict[SessionId, Failure]:
    return {SessionId(session): Failure(1, "x", at) for session, at in retry_at.items()}


def after(hours: float, **more: object) -> Standing:
    return Standing(runs=1, last_run_at=ago(hours=hours), **more)  # type: ignore[arg-type]


LATER, EARLIER = NOW + timedelta(minutes=3), ago(minutes=3)

CASES = [
    ("nothing changed, no profile", activity(0), Standing(), Why.UNCHANGED, None),
    ("nothing changed for days", activity(0), after(100), Why.UNCHANGED, None),
    ("first, just idle enough", activity(1, 10), Standing(), Why.FIRST, None),
    ("first, one second short", activity(1, 10 - 1 / 60), Standing(), Why.ACTIVE, NOW + timedelta(seconds=1)),
    ("first, idle, being served", activity(1, 60, is_busy=True), Standing(), Why.BUSY, None),
    ("nothing changed, being served", activity(0, is_busy=True), after(100), Why.UNCHANGED, None),
    ("four changed, recent run", activity(4, 30), after(1), Why.RECENT, NOW + timedelta(hours=23)),
    ("five changed, recent run", activity(5, 30), after(1), Why.SESSIONS, None),
    ("five changed, but not idle", activity(5, 9), after(1), Why.ACTIVE, NOW + timedelta(minutes=1)),
    ("one changed, a day old", activity(1, 30), after(24), Why.AGE, None),
    ("one changed, just under a day", activity(1, 30), after(24 - 1 / 3600), Why.RECENT, NOW + timedelta(seconds=1)),
    ("in the future", Activity(1, NOW + timedelta(hours=1)), Standing(), Why.ACTIVE, NOW + timedelta(minutes=70)),
    ("failed, still resting", activity(9, 99), Standing(failure=Failure(1, "x", LATER)), Why.BACKING_OFF, LATER),
    ("failed, rested", activity(9, 99), Standing(failure=Failure(1, "x", EARLIER)), Why.FIRST, None),
    ("unfinished", activity(1, 30), after(1, is_unfinished=True), Why.UNFINISHED, None),
    ("unfinished, but active", activity(1, 1), after(1, is_unfinished=True), Why.ACTIVE, NOW + timedelta(minutes=9)),
    ("only a resting session", activity(1, 30), after(1, sessions=failing(s1=LATER)), Why.UNCHANGED, LATER),
    ("a rested session", activity(1, 30), after(1, sessions=failing(s1=EARLIER)), Why.RETRY, None),
    ("a resting one does not count", activity(5, 30), after(1, sessions=failing(s1=LATER)), Why.RECENT, LATER),
    ("six, one of them resting", activity(6, 30), after(1, sessions=failing(s1=LATER)), Why.SESSIONS, None),
    ("a day old, all resting", activity(2, 30), after(30, sessions=failing(s1=LATER, s2=LATER)), Why.UNCHANGED, LATER),
    ("a day old, one resting", activity(2, 30), after(30, sessions=failing(s1=LATER)), Why.AGE, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("happened", "standing", "why", "look_again_at"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_a_verdict_gives_the_reason_and_when_to_look_again(
    happened: Activity, standing: Standing, why: Why, look_again_at: datetime | None
) -> None:
    verdict = decide(happened, standing, NOW, POLICY)
    assert (verdict.why, verdict.look_again_at) == (why, look_again_at)


def test_every_limit_of_the_policy_can_be_set() -> None:
    quick = Policy(idle=timedelta(0), age=timedelta(seconds=1), sessions=2)
    assert decide(Activity(1, NOW), Standing(), NOW, quick).why is Why.FIRST
    assert decide(Activity(2, NOW), after(0), NOW, quick).why is Why.SESSIONS
    assert decide(Activity(1, NOW), after(0.01), NOW, quick).why is Why.AGE


def test_a_backoff_doubles_up_to_its_maximum_and_honours_retry_after() -> None:
    backoff = Backoff(timedelta(minutes=1), timedelta(minutes=5))
    assert [backoff.pause(n).total_seconds() for n in (1, 2, 3, 4, 99)] == [60, 120, 240, 300, 300]
    first = Failure.after(None, "busy", NOW, backoff, retry_after_s=600)
    assert first.retry_at == NOW + timedelta(seconds=600)
    assert Failure.after(first, "busy", NOW, backoff).count == 2


def test_a_standing_survives_json() -> None:
    standing = Standing(3, NOW, "written", 7, True, Failure(2, "why", LATER), failing(s1=EARLIER))
    assert Standing.parse(standing.encode()) == standing
    assert Standing.parse({}) == Standing()
