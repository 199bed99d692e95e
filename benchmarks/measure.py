"""Measuring on a noisy machine: everything interleaved in one run, p50 and p95 with n, ratios to a baseline.

It does not judge. A figure is meaningful only next to the baseline of the same run.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Rate:
    """Commands per second with this many clients."""

    name: str
    clients: int
    n: int
    per_second: float


@dataclass(frozen=True, slots=True)
class Missing:
    """The contenders that could not be measured, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Curve:
    """The growth of a figure; `points` are pairs of x and y."""

    name: str
    x: str
    y: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Promise:
    """One line of the specification, with its measured value."""

    text: str
    wanted: str
    measured: str
    is_kept: bool
    n: int = 0
    """The number of measurements of ours; 0 if a count does not apply."""


async def interleave(acts: Mapping[str, Act], rounds: int, *, rarely: frozenset[str] = frozenset()) -> list[Figure]:
    """Run every act once per round, so that noise affects all of them equally; those in `rarely` every tenth round."""
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


def figure(name: str, took_ms: Sequence[float]) -> Figure:
    """Return the median and the 95th percentile by nearest rank, so that both are measured times."""
    if not took_ms:
        raise ValueError(f"cannot tell how long {name} takes: it was never measured")
    ordered = sorted(took_ms)
    return Figure(
        name, len(ordered), ordered[len(ordered) // 2], ordered[min(int(len(ordered) * 0.95), len(ordered) - 1)]
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return how much y grows per x: the slope of the least-squares line through all points."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


def show(title: str, figures: Sequence[Figure], baseline: str) -> None:
    base = next((item for item in figures if item.name == baseline), figures[0])
    table = Table(title=title, title_justify="left")
    for heading in ("what", "p50 ms", "p95 ms", "n", f"× {base.name}"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for item in figures:
        table.add_row(item.name, f"{item.p50_ms:.2f}", f"{item.p95_ms:.2f}", str(item.n), f"{item.ratio_to(base):.2f}")
    Console().print(table)


def show_rates(title: str, rates: Sequence[Rate], baseline: str) -> None:
    counts = sorted({rate.clients for rate in rates})
    found = {(rate.name, rate.clients): rate.per_second for rate in rates}
    table = Table(title=f"{title}, and × {baseline}", title_justify="left")
    table.add_column("what", no_wrap=True)
    for count in counts:
        table.add_column(f"{count} client{'s' if count > 1 else ''}", justify="right")
        table.add_column("×", justify="right")
    for name in dict.fromkeys(rate.name for rate in rates):
        cells = []
        for count in counts:
            mine, base = found.get((name, count)), found.get((baseline, count))
            cells += [f"{mine:.0f}/s" if mine else "–", f"{mine / base:.2f}" if mine and base else "–"]
        table.add_row(name, *cells)
    Console().print(table)


def show_missing(missing: Sequence[Missing]) -> None:
    for item in dict.fromkeys(missing):
        Console().print(f"[yellow]not measured[/] {item.name}: {item.reason}", highlight=False)


def show_curves(curves: Sequence[Curve]) -> None:
    for curve in curves:
        table = Table(title=curve.name, title_justify="left")
        table.add_column(curve.x, justify="right")
        table.add_column(curve.y, justify="right")
        for x, y in curve.points:
            table.add_row(f"{x:,.0f}", f"{y:,.2f}")
        Console().print(table)


def show_promises(promises: Sequence[Promise]) -> None:
    table = Table(title="promises", title_justify="left")
    for heading in ("promise", "wanted", "measured", ""):
        table.add_column(heading)
    for promise in promises:
        verdict = "[green]kept[/]" if promise.is_kept else "[red]not reached[/]"
        table.add_row(promise.text, promise.wanted, promise.measured, verdict)
    Console().print(table)


def write(
    name: str,
    figures: Mapping[str, Sequence[Figure]],
    promises: Sequence[Promise],
    *,
    rates: Sequence[Rate] = (),
    missing: Sequence[Missing] = (),
    curves: Sequence[Curve] = (),
    idle: Sequence[Any] = (),
) -> Path:
    """Write the results of a benchmark, replacing earlier ones."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    report = {
        "benchmark": name,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "figures": {group: [asdict(item) for item in items] for group, items in figures.items()},
        "rates": [asdict(rate) for rate in rates],
        "missing": [asdict(item) for item in dict.fromkeys(missing)],
        "idle": [asdict(item) for item in idle],
        "curves": [asdict(curve) for curve in curves],
        "promises": [asdict(promise) for promise in promises],
    }
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    return path


def load(name: str) -> dict[str, Any] | None:
    """Return the last results of a benchmark, or None if it never ran here."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None
