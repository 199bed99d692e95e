"""Many users and services: order, fairness, leases, and how watching starts and stops."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import anyio
import pytest

from memo import SQLiteStore
from memo.consolidation import (
    Backoff,
    Budget,
    ConsolidationSettings,
    Outcome,
    Policy,
    Progress,
    RunResult,
)
from memo.consolidation.fair_queue import FairQueue
from memo.consolidation.summarisers import ProfileRequest
from memo.consolidation.transcript import Transcript
from memo.errors import Unavailable
from memo.ids import UserRef
from memo.stores import BaseStore
from memo.stores.options import utc_now
from tests.memo.consolidation.scenes import Clock, Scripted, page, revisions, say, service_of

pytestmark = pytest.mark.anyio


def outcomes(results: list[RunResult]) -> dict[str, Outcome]:
    return {str(result.user): result.outcome for result in results}


async def test_watching_runs_users_as_they_become_due_until_stopped(store: BaseStore) -> None:
    """Use the real clock: the idle time is short, and the scan interval is too long to wake the service in time."""
    finished: list[RunResult] = []
    first = anyio.Event()

    def observe(progress: Progress) -> None:
        if progress.result is not None:
            finished.append(progress.result)
            first.set()
            if len(finished) == 2:
                service.stop()

    store.options.clock.now = utc_now()  # type: ignore[attr-defined]
    settings = ConsolidationSettings(policy=Policy(idle=timedelta(seconds=0.3)), scan_s=600)
    service = service_of(store, utc_now, settings=settings, observe=observe)
    await say(store, "s1", "I prefer short answers.")
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.watch)
            await first.wait()
            await say(store, "s2", "I like graphs.", user="bob")
            service.nudge()
    assert outcomes(finished) == {"acme:ann": Outcome.WRITTEN, "acme:bob": Outcome.WRITTEN}


async def test_watching_survives_an_unavailable_store(sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = anyio.Event()
    list_pending = sqlite.list_pending

    async def fail_once() -> Any:
        monkeypatch.setattr(sqlite, "list_pending", list_pending)
        asked.set()
        raise Unavailable("cannot use the store: it is unavailable")

    monkeypatch.setattr(sqlite, "list_pending", fail_once)
    finished = anyio.Event()
    settings = ConsolidationSettings(policy=Policy(idle=timedelta(0), backoff=Backoff()), scan_s=600)
    service = service_of(
        sqlite, utc_now, settings=settings, observe=lambda p: finished.set() if p.kind == "finished" else None
    )
    await say(sqlite, "s1", "I prefer short answers.")
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.watch)
            await asked.wait()
            service.nudge()
            await finished.wait()
            service.stop()
    assert "Prefers short answers" in await page(sqlite)


async def test_watching_survives_any_error_of_a_third_party_store(
    sqlite: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third-party error in a scan, a lease or a mirror refresh costs one attempt each."""
    finished: list[RunResult] = []
    scanned, noted, done = anyio.Event(), anyio.Event(), anyio.Event()
    broken = {"list_pending": scanned, "acquire_lease": anyio.Event()}

    def break_once(name: str) -> None:
        sound = getattr(sqlite, name)

        async def raise_once(*_: Any) -> Any:
            monkeypatch.setattr(sqlite, name, sound)
            broken[name].set()
            raise KeyError("a foreign bug")

        monkeypatch.setattr(sqlite, name, raise_once)

    class Mirrors:
        async def refresh_user_memo_mirror_for_all_sessions(self, *_: Any) -> None:
            raise ZeroDivisionError

    def observe(progress: Progress) -> None:
        if progress.result is not None:
            finished.append(progress.result)
            (done if progress.result.outcome is Outcome.WRITTEN else noted).set()

    for name in broken:
        break_once(name)
    settings = ConsolidationSettings(policy=Policy(idle=timedelta(0)), scan_s=600)
    service = service_of(sqlite, utc_now, settings=settings, observe=observe, mirrors=Mirrors())
    await say(sqlite, "s1", "I prefer short answers.")
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.watch)
            await scanned.wait()
            service.nudge()
            await noted.wait()
            service.nudge()
            await done.wait()
            service.stop()
    assert [result.outcome for result in finished] == [Outcome.FAILED, Outcome.WRITTEN]
    assert (finished[0].code, finished[0].reason) == ("", "cannot continue: KeyError")


async def test_a_single_tenant_can_be_run(store: BaseStore, clock: Clock) -> None:
    await say(store, "s1", "I prefer short answers.")
    await say(store, "s2", "I prefer short answers.", tenant="other")
    clock.advance(hours=1)
    service = service_of(store, clock)
    assert outcomes(await service.run_once(tenant="other")) == {"other:ann": Outcome.WRITTEN}
    assert outcomes(await service.run_once(everybody=True, tenant="acme")) == {"acme:ann": Outcome.WRITTEN}


async def test_the_queue_serves_the_tenant_with_the_fewest_running_users() -> None:
    queue = FairQueue()
    for user in [*(f"big:u{n}" for n in range(6)), "small:a", "small:b", "tiny:x"]:
        assert queue.put(UserRef.of(*user.split(":")))
    assert not queue.put(UserRef.of("big", "u0")), "a user is in the queue at most once"
    first = [str(await queue.take()) for _ in range(4)]
    assert first == ["big:u0", "small:a", "tiny:x", "big:u1"] or first == ["big:u0", "small:a", "tiny:x", "small:b"]
    queue.done(UserRef.of("small", "a"))
    assert str(await queue.take()) == "small:b"
    queue.close()
    rest = []
    while (taken := await queue.take()) is not None:
        rest.append(str(taken))
    assert rest == ["big:u2", "big:u3", "big:u4", "big:u5"]


async def test_a_tenant_with_many_users_does_not_delay_another(store: BaseStore, clock: Clock) -> None:
    order: list[str] = []

    async def note(transcript: Transcript, budget: Budget) -> None:
        order.append(transcript.session)

    for number in range(12):
        await say(store, f"big-{number}", "I prefer short answers.", user=f"u{number}", tenant="big")
    await say(store, "small-1", "I prefer short answers.", tenant="small")
    clock.advance(hours=1)
    await service_of(store, clock, Scripted(note), ConsolidationSettings(concurrency=2)).run_once()
    assert order.index("small-1") <= 2


async def test_two_services_never_run_the_same_user_at_once(store: BaseStore, clock: Clock) -> None:
    inside, go_on = anyio.Event(), anyio.Event()

    async def wait(transcript: Transcript, budget: Budget) -> None:
        inside.set()
        await go_on.wait()

    await say(store, "s1", "I prefer short answers.")
    clock.advance(hours=1)
    slow, other = service_of(store, clock, Scripted(wait)), service_of(store, clock)
    results: list[RunResult] = []

    async def run_slowly() -> None:
        results.extend(await slow.run_once())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run_slowly)
        await inside.wait()
        held = await other.consolidate("acme", "ann")
        assert (held.outcome, held.reason) == (Outcome.HELD, f"held by {slow.holder}")
        assert (await other.state("acme", "ann")).holder == slow.holder
        go_on.set()
    assert outcomes(results) == {"acme:ann": Outcome.WRITTEN}
    assert await other.run_once() == []
    assert await revisions(store) == 1


async def test_a_holder_that_stalls_past_its_lease_writes_nothing(store: BaseStore, clock: Clock) -> None:
    async def stall(request: ProfileRequest, budget: Budget) -> None:
        clock.advance(minutes=5)
        assert (await service_of(store, clock).consolidate("acme", "ann")).outcome is Outcome.WRITTEN

    await say(store, "s1", "I prefer short answers.")
    late = await service_of(store, clock, Scripted(on_profile=stall)).consolidate("acme", "ann")
    assert late.outcome is Outcome.LOST
    assert await revisions(store) == 1


async def test_a_lost_lease_cancels_the_run(store: BaseStore, clock: Clock) -> None:
    async def hang(request: ProfileRequest, budget: Budget) -> None:
        clock.advance(minutes=5)
        await anyio.sleep_forever()

    await say(store, "s1", "I prefer short answers.")
    service = service_of(store, clock, Scripted(on_profile=hang), ConsolidationSettings(lease_s=0.3))
    with anyio.fail_after(30):
        result = await service.consolidate("acme", "ann")
    assert result.outcome is Outcome.LOST
