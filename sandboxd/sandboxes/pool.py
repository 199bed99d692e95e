"""The pool: warm sandboxes, which run but have no owner yet, kept ready by shape.

Owns the table of sandboxes that are warming up, ready and retiring, and decides when there should be more or fewer. The
manager makes and removes them. A claimed sandbox never returns: a container is claimed once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import anyio

from sandboxd.errors import EngineUnavailable
from sandboxd.metrics import PoolFigures
from sandboxd.sandboxes.demand import Demand
from sandboxd.sandboxes.lifecycle import Shape, State
from sandboxd.sandboxes.sandbox import Sandbox

REFILLS_AT_ONCE = 2  # more concurrent starts make each of them slower
_AFTER_CLAIM_S = 0.25  # a starting container would slow down the first commands of a new session
_FIRST_REST_S = 1.0
_LONGEST_REST_S = 60.0
_MOST_SHAPES = 64


class Pool:
    """`warm_up` begins to start one and returns it; `retire` begins to remove one; `is_busy` returns whether a caller
    waits; `spare` returns how many more sandboxes the daemon can run.

    With `size` 0 there is no pool: nothing is kept, and warm sandboxes of an earlier daemon are retired.
    """

    def __init__(
        self,
        size: int,
        most: int,
        shrink_s: float,
        *,
        warm_up: Callable[[Shape], Sandbox],
        retire: Callable[[Sandbox], None],
        is_busy: Callable[[], bool],
        spare: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._figures = PoolFigures()
        self._size = size
        self._most = max(size, most) if size else 0
        self._shrink_s = shrink_s
        self._warm_up = warm_up
        self._retire = retire
        self._is_busy = is_busy
        self._spare = spare
        self._clock = clock
        self._sandboxes: dict[str, Sandbox] = {}
        self._demands: dict[Shape, Demand] = {}
        self._changed = anyio.Event()
        self._rest_s = 0.0
        self._rests_until = 0.0
        self._misses_engine = False
        """Whether the last warm-up failed because the engine did not answer."""

    def prefer(self, shape: Shape) -> None:
        """Keep this shape ready from the start, because a request without options gets it."""
        self._demands[shape] = Demand(self._size, self._most, self._shrink_s)
        self.nudge()

    def take(self, shape: Shape) -> Sandbox | None:
        """Take a warm sandbox out of the pool permanently; return None if there is none of this shape."""
        found = next((s for s in self._sandboxes.values() if _is_ready(s) and s.record.shape == shape), None)
        if self._size:
            self._figures.hits += found is not None
            self._figures.misses += found is None
            self._demand(shape).asked(self._clock(), missed=found is None)
        if found is not None:
            del self._sandboxes[found.record.id]
            self._rests_until = max(self._rests_until, self._clock() + _AFTER_CLAIM_S)
        self.nudge()
        return found

    def give_way(self) -> None:
        """Retire a warm sandbox, if there is one, because a caller needs its resources."""
        if (found := next(filter(_is_ready, self._sandboxes.values()), None)) is not None:
            self._retire(found)

    def add(self, sandbox: Sandbox) -> None:
        """Adopt a warm sandbox of an earlier daemon, or what is left of one."""
        self._sandboxes[sandbox.record.id] = sandbox

    def get(self, sandbox_id: str) -> Sandbox | None:
        return self._sandboxes.get(sandbox_id)

    def all(self) -> Iterable[Sandbox]:
        return self._sandboxes.values()

    def __len__(self) -> int:
        return len(self._sandboxes)

    def figures(self) -> PoolFigures:
        now = self._clock()
        target = min(self._most, sum(demand.size(now) for demand in self._demands.values()))
        return replace(self._figures, ready=sum(map(_is_ready, self._sandboxes.values())), target=target)

    def settled(self, sandbox: Sandbox, seconds: float) -> None:
        """Record that a move of a warm sandbox has ended, and how long it took."""
        if sandbox.record.state is State.REMOVED:
            self._sandboxes.pop(sandbox.record.id, None)
        if sandbox.failure is not None:
            # Whatever is wrong with the engine or the image, an immediate retry makes it worse.
            self._rest_s = min(max(_FIRST_REST_S, self._rest_s * 2), _LONGEST_REST_S)
            self._rests_until = self._clock() + self._rest_s
            self._misses_engine = isinstance(sandbox.failure, EngineUnavailable)
        elif _is_ready(sandbox):
            self._rest_s = 0.0
            self._figures.refills += 1
            self._figures.refill_seconds += seconds
        self.nudge()

    def resume(self) -> None:
        """Warm up again at once, because the engine is back."""
        self._rest_s = self._rests_until = 0.0
        self._misses_engine = False
        self.nudge()

    def launched_elsewhere(self) -> None:
        """Record that a caller's container started, so an engine that was unreachable is back."""
        if self._misses_engine:
            self.resume()

    def nudge(self) -> None:
        """Wake the pool, because its target or the time of its next change may have changed."""
        self._changed.set()

    async def tend(self) -> None:
        """Keep as many ready as the demand requires, for ever. Woken by changes; it never polls."""
        while True:
            self._changed = anyio.Event()
            looks_again_at = self._tend_once(self._clock())
            with anyio.move_on_after(looks_again_at - self._clock()):
                await self._changed.wait()

    def _tend_once(self, now: float) -> float:
        counts: dict[Shape, int] = {}
        coming = 0
        for sandbox in list(self._sandboxes.values()):
            shape = sandbox.record.shape
            wanted = self._demands[shape].size(now) if shape in self._demands else 0
            if sandbox.record.state in (State.CREATING, State.STARTING):
                coming += 1
            elif sandbox.record.state is not State.WARM:
                continue
            elif _is_ready(sandbox) and counts.get(shape, 0) >= wanted:  # otherwise it is being adopted
                self._retire(sandbox)
                continue
            counts[shape] = counts.get(shape, 0) + 1
        missing = [
            shape for shape, demand in self._demands.items() for _ in range(demand.size(now) - counts.get(shape, 0))
        ]
        room = min(REFILLS_AT_ONCE - coming, self._most - sum(counts.values()), self._spare())
        if missing and now >= self._rests_until and not self._is_busy():
            for shape in missing[: max(room, 0)]:
                self.add(self._warm_up(shape))
        return min(
            [demand.shrinks_at() for demand in self._demands.values()]
            + [self._rests_until if missing and now < self._rests_until else float("inf")]
        )

    def _demand(self, shape: Shape) -> Demand:
        demand = self._demands.get(shape)
        if demand is None:
            self._forget_idle_shapes()
            demand = self._demands[shape] = Demand(0, self._most, self._shrink_s)
        return demand

    def _forget_idle_shapes(self) -> None:
        now = self._clock()
        if len(self._demands) >= _MOST_SHAPES:
            self._demands = {shape: demand for shape, demand in self._demands.items() if demand.size(now)}


def _is_ready(sandbox: Sandbox) -> bool:
    return sandbox.record.state is State.WARM and sandbox.settled is None and sandbox.runner is not None
