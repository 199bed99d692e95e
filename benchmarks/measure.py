"""Measuring on a noisy machine: everything interleaved in one run, p50 and p95 with n, ratios to a baseline.

It never judges. A figure is worth something only beside the baseline of the same run.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

RESULTS = Path(__file__).parent / "results"

Act = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    n: int
    p50_ms: float
    p95_ms: float

    def ratio_to(self, baseline: Figure) -> float:
        return self.p50_ms / baseline.p50_ms


async def interleave(acts: Mapping[str, Act], rounds: int, *, rarely: frozenset[str] = frozenset()) -> list[Figure]:
    """Run every act once a round, so that a noisy moment hits all of them; those in `rarely` every tenth round."""
    for act in acts.values():
        for _ in range(5):
            await act()
    took: dict[str, list[float]] = {name: [] for name in acts}
    for number in track(range(rounds), description="interleaving", transient=True):
        for name, act in acts.items():
            if name in rarely and number % 10:
                continue
            started = time.perf_counter()
            await act()
            took[name].append((time.perf_counter() - started) * 1000)
    return [figure(name, values) for name, values in took.items()]


def figure(name: str, took_ms: list[float]) -> Figure:
    ordered = sorted(took_ms)
    return Figure(name, len(ordered), ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.95)])


def show(title: str, figures: list[Figure], baseline: str) -> None:
    base = next(item for item in figures if item.name == baseline)
    table = Table(title=title, title_justify="left")
    for heading in ("what", "p50 ms", "p95 ms", "n", f"× {baseline}"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for item in figures:
        table.add_row(item.name, f"{item.p50_ms:.2f}", f"{item.p95_ms:.2f}", str(item.n), f"{item.ratio_to(base):.2f}")
    Console().print(table)


@dataclass(frozen=True, slots=True)
class Promise:
    """One line of the specification, measured."""

    text: str
    wanted: str
    measured: str
    is_kept: bool


def show_promises(promises: list[Promise]) -> None:
    table = Table(title="promises", title_justify="left")
    for heading in ("promise", "wanted", "measured", ""):
        table.add_column(heading)
    for promise in promises:
        verdict = "[green]kept[/]" if promise.is_kept else "[red]not reached[/]"
        table.add_row(promise.text, promise.wanted, promise.measured, verdict)
    Console().print(table)


def write(name: str, figures: Mapping[str, list[Figure]], promises: list[Promise]) -> Path:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    report = {
        "benchmark": name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "figures": {group: [asdict(item) for item in items] for group, items in figures.items()},
        "promises": [asdict(promise) for promise in promises],
    }
    path.write_text(json.dumps(report, indent=2) + "\n")
    return path
