"""Killing a call's process tree: what happens to the rest of the sandbox when processes die slowly or multiply."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterable

import pytest

from sandboxd.runner.inside import tree, wire
from sandboxd.runner.inside.background import Waiting
from sandboxd.runner.inside.tree import Proc, kill_tree

RUNNER, TARGET, NEIGHBOUR, MARK = 1, 10, 11, 7
MISSED = -1
"""In a scan: a process was gone before it could be read. Any other negative number is a process that is dead."""


class Sandbox:
    """A process table with one row per scan, and the signals that were sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, looks: Iterable[set[int]]) -> None:
        self._looks = iter(looks)
        self.signals: list[tuple[int, int]] = []
        self.stopped = False
        monkeypatch.setattr(tree, "_scan", self._scan)
        monkeypatch.setattr(tree, "mark_of", lambda pid: None)
        monkeypatch.setattr(os, "kill", self._kill)
        monkeypatch.setattr(os, "killpg", lambda group, number: None)
        monkeypatch.setattr(os, "listdir", lambda path: [])  # no crowd

    def kill(self) -> None:
        for _ in kill_tree(RUNNER, TARGET, MARK):
            pass

    def _scan(self) -> Generator[float, None, tuple[dict[int, Proc], bool]]:
        yield 0.0
        look = next(self._looks, set())
        rows = {abs(pid): Proc(pid > 0, False, abs(pid), MARK) for pid in look if pid != MISSED}
        others = {pid: Proc(True, False, 0, MARK + pid) for pid in (RUNNER, NEIGHBOUR)}
        return {**rows, **others}, MISSED not in look

    def _kill(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))
        if pid == -1 and number == signal.SIGSTOP:
            self.stopped = True
        if (pid, number) == (NEIGHBOUR, signal.SIGCONT):
            self.stopped = False


def test_a_process_that_dies_slowly_does_not_endanger_others(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox(monkeypatch, [{TARGET, 12}] * 20)
    sandbox.kill()
    assert sandbox.signals == [(TARGET, signal.SIGKILL), (12, signal.SIGKILL)]


def test_killing_gives_up_on_a_process_that_never_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox(monkeypatch, [{TARGET}] * 1000)
    sandbox.kill()
    assert sandbox.signals == [(TARGET, signal.SIGKILL)]


def test_new_processes_are_searched_for_while_all_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox(monkeypatch, [{TARGET}, {20, 21}, {20, 21, 22}])
    sandbox.kill()
    killed = [pid for pid, number in sandbox.signals if number == signal.SIGKILL]
    assert killed == [TARGET, 20, 21, 22]
    assert (-1, signal.SIGSTOP) in sandbox.signals
    assert not sandbox.stopped


def test_a_fork_bomb_that_outruns_the_runner_ends_every_process_of_the_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox = Sandbox(monkeypatch, [{number} for number in range(100, 1000)])
    sandbox.kill()
    assert (-1, signal.SIGKILL) in sandbox.signals
    assert not sandbox.stopped


def test_a_process_that_is_never_seen_alive_is_searched_for_while_all_are_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox = Sandbox(monkeypatch, [{MISSED}, {MISSED}, {MISSED}, {20}])
    sandbox.kill()
    assert sandbox.signals.index((-1, signal.SIGSTOP)) < sandbox.signals.index((20, signal.SIGKILL))
    assert not sandbox.stopped


def test_a_process_that_is_only_ever_seen_dead_is_searched_for_while_all_are_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sandbox = Sandbox(monkeypatch, [{-20}, {-21}, {-22}, {23}])
    sandbox.kill()
    assert sandbox.signals.index((-1, signal.SIGSTOP)) < sandbox.signals.index((23, signal.SIGKILL))
    assert not sandbox.stopped


def test_a_process_that_stays_dead_does_not_prolong_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox(monkeypatch, [{TARGET}, {-TARGET, -20}, {-TARGET, -20}, {21}])
    sandbox.kill()
    assert sandbox.signals == [(TARGET, signal.SIGKILL)]


class Process:
    """A background process whose tree is being killed; `done` reports the end."""

    is_running = True

    def __init__(self) -> None:
        self.changed: dict[int, Callable[[], None]] = {}
        self.done: Callable[[bool], None] = lambda was_killed: None

    def on_change(self, call: int, action: Callable[[], None]) -> None:
        self.changed[call] = action

    def off_change(self, call: int) -> None:
        self.changed.pop(call, None)

    def kill(self, number: int, grace_s: float, done: Callable[[bool], None]) -> None:
        self.done = done

    def reap(self) -> None:
        self.is_running = False
        for action in list(self.changed.values()):
            action()

    def describe(self) -> dict[str, bool]:
        return {"running": self.is_running}


class Answering:
    """The part of a runner that a waiting call uses; records what was sent."""

    def __init__(self) -> None:
        self.connection = self
        self.sent: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def forget(self, call: int, live: object) -> None:
        pass


@pytest.mark.parametrize("is_reaped_first", [True, False])
def test_a_kill_is_answered_once_when_the_whole_tree_is_dead(is_reaped_first: bool) -> None:
    runner, process = Answering(), Process()
    Waiting(runner, 7, process).kill(signal.SIGKILL, 0)  # type: ignore[arg-type]
    steps: list[Callable[[], None]] = [process.reap, lambda: process.done(True)]
    first, second = steps if is_reaped_first else reversed(steps)
    first()
    assert runner.sent == []
    second()
    assert runner.sent == [wire.pack(wire.RESULT, 7, {"running": False, "killed": True})]
    process.reap()
    assert len(runner.sent) == 1


def test_a_kill_that_was_cancelled_is_not_answered() -> None:
    runner, process = Answering(), Process()
    waiting = Waiting(runner, 7, process)  # type: ignore[arg-type]
    waiting.kill(signal.SIGKILL, 0)
    waiting.cancel()
    process.reap()
    process.done(True)
    assert runner.sent == []


def test_a_kill_during_a_hold_leaves_the_others_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree._held, "count", 1)
    sandbox = Sandbox(monkeypatch, [{TARGET}, {20, 21}, {20, 21, 22}])
    sandbox.kill()
    assert [pid for pid, number in sandbox.signals if number == signal.SIGKILL] == [TARGET, 20, 21, 22]
    assert sandbox.stopped


class Frozen:
    """A process table whose processes stop at once, and a hub that never waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, stopped: set[int]) -> None:
        self.procs = {pid: Proc(True, pid in stopped, pid, 0, parent=1) for pid in (RUNNER, TARGET, NEIGHBOUR, 12)}
        self.signals: list[tuple[int, int]] = []
        monkeypatch.setattr(tree, "_held", tree._Held())
        monkeypatch.setattr(tree, "_scan", self._scan)
        monkeypatch.setattr(os, "kill", self._kill)
        monkeypatch.setattr(os, "getpid", lambda: RUNNER)

    def after(self, _delay_s: float, action: Callable[[], None]) -> None:
        action()

    def _scan(self) -> Generator[float, None, tuple[dict[int, Proc], bool]]:
        yield 0.0
        return dict(self.procs), True

    def _kill(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))
        for one, proc in self.procs.items():
            if one != RUNNER and pid in (-1, one):
                proc.is_stopped = number == signal.SIGSTOP


def test_a_hold_stops_everything_and_continues_what_it_stopped_children_first(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = Frozen(monkeypatch, stopped={NEIGHBOUR})
    holds = [tree.Hold(frozen) for _ in range(2)]  # type: ignore[arg-type]
    begun: list[int] = []
    for number, hold in enumerate(holds):
        hold.begin(lambda number=number: begun.append(number))  # type: ignore[misc]
    assert begun == [0, 1]
    assert frozen.signals == [(-1, signal.SIGSTOP)]
    tree.stop_if_held(30)
    holds[0].release()
    assert frozen.signals[1:] == [(30, signal.SIGSTOP)]  # the second hold goes on
    holds[1].release()
    assert frozen.signals[2:] == [(12, signal.SIGCONT), (TARGET, signal.SIGCONT)]
    tree.stop_if_held(31)
    assert len(frozen.signals) == 4
