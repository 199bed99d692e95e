"""Metrics: observed values are read at scrape time."""

from __future__ import annotations

from sandboxd.metrics import Metrics


def test_tasks_are_counted_at_scrape_time() -> None:
    counts = iter([3, 5])
    metrics = Metrics(states=dict, dropped=int, tasks=lambda: next(counts))
    assert b"\nsandboxd_tasks 3.0\n" in metrics.render()
    assert b"\nsandboxd_tasks 5.0\n" in metrics.render()


def test_nothing_is_queried_before_the_daemon_is_ready() -> None:
    asked: list[str] = []

    def ask() -> int:
        asked.append("too early")
        return 0

    Metrics(states=dict, dropped=ask, tasks=ask)
    assert asked == []
