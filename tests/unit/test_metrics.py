"""Metrics: what is observed is read at the moment it is asked for."""

from __future__ import annotations

from sandboxd.metrics import Metrics


def test_tasks_are_counted_when_somebody_asks() -> None:
    counts = iter([3, 5])
    metrics = Metrics(states=dict, dropped=int, tasks=lambda: next(counts))
    assert b"\nsandboxd_tasks 3.0\n" in metrics.render()
    assert b"\nsandboxd_tasks 5.0\n" in metrics.render()


def test_nobody_is_asked_before_the_daemon_is_ready() -> None:
    asked: list[str] = []

    def ask() -> int:
        asked.append("too early")
        return 0

    Metrics(states=dict, dropped=ask, tasks=ask)
    assert asked == []
