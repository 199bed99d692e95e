"""The pool's decisions: how many, of which shape, and when; with a fake clock and no containers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxd.errors import EngineRefused, EngineUnavailable, SandboxdError
from sandboxd.limits import Limits
from sandboxd.sandboxes.demand import Demand
from sandboxd.sandboxes.lifecycle import Shape, State
from sandboxd.sandboxes.pool import REFILLS_AT_ONCE, Pool
from sandboxd.sandboxes.sandbox import Sandbox
from tests.unit.test_lifecycle import record

USUAL, OTHER = Shape("image:1", Limits()), Shape("image:1", Limits(memory_mb=1024))


class Floor:
    """A pool and its requests: containers start when the test says so."""

    def __init__(self, size: int, most: int = 8) -> None:
        self.now = 0.0
        self.is_busy = False
        self.spare = 100
        self.retired: list[str] = []
        self._ids = (f"{n:016}" for n in itertools.count())
        self.pool = Pool(
            size,
            most,
            300.0,
            warm_up=self._warm_up,
            retire=self._retire,
            is_busy=lambda: self.is_busy,
            spare=lambda: self.spare,
            clock=lambda: self.now,
        )
        self.pool.prefer(USUAL)

    def coming(self) -> list[Sandbox]:
        self.pool._tend_once(self.now)
        return [sandbox for sandbox in self.pool.all() if sandbox.record.state is State.CREATING]

    def come_up(self) -> int:
        """Start containers until the pool requests no more; return how many there are."""
        self.now += 0.5  # past the pause after a claim
        while coming := self.coming():
            for sandbox in coming:
                sandbox.record = sandbox.record.to(State.WARM, container=sandbox.record.id)
                sandbox.runner = object()  # type: ignore[assignment]
                self.pool.settled(sandbox, 0.5)
        return self.pool.figures().ready

    def fail(self, failure: SandboxdError | None = None) -> None:
        for sandbox in self.coming():
            sandbox.record = sandbox.record.to(State.REMOVED)
            sandbox.failure = failure or EngineRefused("cannot launch: no such image")
            self.pool.settled(sandbox, 0.5)

    def _warm_up(self, shape: Shape) -> Sandbox:
        return Sandbox(record(id=next(self._ids), shape=shape, owner=None))

    def _retire(self, sandbox: Sandbox) -> None:
        self.retired.append(sandbox.record.id)
        sandbox.record = sandbox.record.to(State.REMOVED)
        self.pool.settled(sandbox, 0.1)


def test_the_pool_starts_two_at_a_time_until_it_is_full() -> None:
    floor = Floor(5)
    assert len(floor.coming()) == REFILLS_AT_ONCE
    assert floor.come_up() == 5
    assert floor.pool._tend_once(0.0) == math.inf


def test_a_claimed_sandbox_never_returns_and_is_replaced() -> None:
    floor = Floor(2)
    floor.come_up()
    taken = [floor.pool.take(USUAL), floor.pool.take(USUAL)]
    assert floor.pool.take(USUAL) is None
    assert floor.come_up() == 3  # the miss raised the target by one
    assert not {one.record.id for one in taken if one} & {one.record.id for one in floor.pool.all()}
    figures = floor.pool.figures()
    assert (figures.hits, figures.misses, figures.refills) == (2, 1, 5)


def test_the_pool_does_not_warm_up_during_the_first_commands_of_a_session() -> None:
    floor = Floor(1)
    floor.come_up()
    floor.pool.take(USUAL)
    assert floor.coming() == []
    assert floor.pool._tend_once(floor.now) == floor.now + 0.25
    floor.now += 0.25
    assert len(floor.coming()) == 1


def test_the_pool_holds_back_while_a_caller_waits_for_a_container() -> None:
    floor = Floor(2)
    floor.is_busy = True
    assert floor.coming() == []
    floor.is_busy = False
    assert len(floor.coming()) == 2


def test_another_shape_is_kept_warm_once_it_is_requested_twice() -> None:
    floor = Floor(1)
    floor.come_up()
    assert floor.pool.take(OTHER) is None
    floor.come_up()
    assert floor.pool.take(OTHER) is None
    floor.come_up()
    assert floor.pool.take(OTHER) is not None


def test_the_pool_grows_within_its_bound_in_a_burst_and_shrinks_afterwards() -> None:
    floor = Floor(2, most=4)
    floor.come_up()
    for _ in range(20):
        floor.pool.take(USUAL)
    assert floor.come_up() == 4
    floor.now = 298.0
    assert floor.come_up() == 4
    floor.now = 301.0
    assert floor.come_up() == 3
    floor.now = 2000.0
    assert floor.come_up() == 2
    assert len(floor.retired) == 2


def test_the_pool_backs_off_longer_after_each_failure_and_then_recovers() -> None:
    floor = Floor(1)
    rests = []
    for _ in range(8):
        floor.fail()
        assert floor.coming() == []
        rests.append(floor.pool._tend_once(floor.now) - floor.now)
        floor.now += rests[-1]
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60]
    assert floor.come_up() == 1


@pytest.mark.parametrize("noticed_by", [Pool.resume, Pool.launched_elsewhere])
def test_the_pool_continues_at_once_when_the_engine_is_back(noticed_by: Callable[[Pool], None]) -> None:
    floor = Floor(1)
    for _ in range(8):
        floor.fail(EngineUnavailable("cannot launch: the engine does not answer"))
        floor.now = floor.pool._tend_once(floor.now)
    floor.fail(EngineUnavailable("cannot launch: the engine does not answer"))
    assert floor.coming() == []
    noticed_by(floor.pool)
    assert len(floor.coming()) == 1
    floor.fail(EngineUnavailable("cannot launch: the engine does not answer"))
    assert floor.pool._tend_once(floor.now) == floor.now + 1, "another outage begins with a short rest"


def test_a_caller_s_container_does_not_end_the_backoff_after_an_image_failed() -> None:
    floor = Floor(1)
    floor.fail()
    floor.pool.launched_elsewhere()
    assert floor.coming() == []


def test_the_pool_stays_within_the_daemon_s_limit_and_gives_way_to_a_caller() -> None:
    floor = Floor(4)
    floor.spare = 1
    assert len(floor.coming()) == 1
    floor.spare = 0
    assert floor.come_up() == 1
    floor.pool.give_way()
    assert floor.pool.figures().ready == 0
    assert len(floor.retired) == 1
    floor.pool.give_way()  # no warm sandbox is left


def test_without_a_pool_nothing_is_kept_and_leftovers_are_retired() -> None:
    floor = Floor(0)
    left = Sandbox(record(State.WARM, owner=None, container="c1"))
    left.runner = object()  # type: ignore[assignment]
    floor.pool.add(left)
    assert floor.come_up() == 0
    assert floor.retired == [left.record.id]
    assert floor.pool.take(USUAL) is None
    assert floor.pool.figures().misses == 0


def test_containers_set_up_by_a_different_daemon_are_not_handed_out() -> None:
    floor = Floor(1)
    old = Sandbox(record(State.WARM, owner=None, container="c1", shape=replace(USUAL, fittings="old")))
    old.runner = object()  # type: ignore[assignment]
    floor.pool.add(old)
    assert floor.pool.take(USUAL) is None
    floor.come_up()
    assert floor.retired == [old.record.id]


@given(
    least=st.integers(0, 4),
    most=st.integers(0, 8),
    requests=st.lists(st.tuples(st.floats(0, 1000), st.booleans()), max_size=40),
)
def test_demand_stays_within_its_bounds_and_settles_at_the_minimum(
    least: int, most: int, requests: list[tuple[float, bool]]
) -> None:
    demand, now = Demand(least, most, 300.0), 0.0
    for wait_s, missed in requests:
        now += wait_s
        demand.asked(now, missed=missed)
        assert least <= demand.size(now) <= max(least, most)
    steps = 0
    while (then := demand.shrinks_at()) < math.inf:
        assert then >= now or demand.size(now) < max(least, most)
        now, steps = max(now, then), steps + 1
        demand.size(now)
    assert demand.size(now) == least
    assert steps <= max(least, most)


@pytest.mark.parametrize("missed", [True, False])
def test_a_single_request_does_not_raise_the_demand(missed: bool) -> None:
    demand = Demand(0, 8, 300.0)
    demand.asked(0.0, missed=missed)
    demand.asked(10_000.0, missed=missed)
    assert demand.size(10_000.0) == 0
