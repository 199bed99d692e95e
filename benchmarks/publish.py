"""Publish results: the picture, and the marked blocks of docs/performance.md and docs/specification.md.

`python -m benchmarks.publish` writes them from the results of the last runs; `--docs DIR` writes them elsewhere. It
measures nothing and never touches a line outside a marked block.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, load
from benchmarks.peers import ENTRIES
from benchmarks.picture import Bar, Chart, draw, number

DOCS = Path(__file__).parent.parent / "docs"
COMMAND = "make bench"
ORDER = (
    "compare",
    "exec",
    "visible",
    "mirror",
    "neighbour",
    "growth",
    "load",
    "stages",
    "soak",
    "resume",
    "fork",
    "egress",
    "inspector",
    "consolidation_quality",
)
CHARTS = {
    "session → first result": "From nothing to the result of the first command",
    "command, `true`": "One command, `true`",
    "write 4 KB": "Write a file of 4 KB",
    "the whole afternoon, 200 calls": "A scripted agent's afternoon: 200 tool calls over 100 files",
}
_KINDS = {entry.name: entry.kind for entry in ENTRIES}


def results() -> list[dict[str, Any]]:
    return [found for name in ORDER if (found := load(name)) is not None]


def _bar(name: str, value: float) -> Bar:
    kind = _KINDS.get(name, "peer")
    return Bar(name, value, kind if kind in {"ours", "bare"} else "peer")


def charts_of(compared: dict[str, Any]) -> list[Chart]:
    charts = []
    for group, title in CHARTS.items():
        figures = [item for item in compared["figures"].get(group, []) if item["p50_ms"] > 0]
        if figures:
            bars = sorted((_bar(item["name"], item["p50_ms"]) for item in figures), key=lambda bar: bar.value)
            unit = "ms in all" if "whole" in group else "ms, p50"
            charts.append(Chart(title, unit, tuple(bars)))
    most = max((item["clients"] for item in compared["rates"]), default=0)
    rates = [item for item in compared["rates"] if item["clients"] == most and item["per_second"] > 0]
    if rates:
        bars = sorted((_bar(item["name"], item["per_second"]) for item in rates), key=lambda bar: -bar.value)
        charts.append(
            Chart(f"Commands a second, {most} clients", "commands a second", tuple(bars), is_more_better=True)
        )
    return charts


def picture(found: Sequence[dict[str, Any]]) -> str:
    by_name = {item["benchmark"]: item for item in found}
    charts = charts_of(by_name["compare"]) if "compare" in by_name else []
    grown = by_name.get("growth", {}).get("curves", []) + by_name.get("soak", {}).get("curves", [])[:1]
    curves = [(curve["name"], curve["x"], curve["y"], [(x, y) for x, y in curve["points"]]) for curve in grown]
    newest = max((item["at"][:10] for item in found), default="never")
    cpus = next((item["cpus"] for item in found), "?")
    return draw(charts, curves, f"{newest}, {cpus} cores, `{COMMAND}`")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    aligned = ["---", *("---:" for _ in headings[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, aligned, *rows))


def figure_tables(found: dict[str, Any]) -> list[str]:
    parts = []
    rows: list[tuple[str, ...]]
    for group, figures in found["figures"].items():
        rows = [(i["name"], number(i["p50_ms"]), number(i["p95_ms"]), f"{i['n']}") for i in figures]
        base = next((i for i in figures if i["name"] in {"sandboxd", "API"}), None)
        headings = ["what", "p50 ms", "p95 ms", "n"]
        if base is not None:
            headings.append(f"× {base['name']}")
            rows = [(*row, number(i["p50_ms"] / base["p50_ms"])) for row, i in zip(rows, figures, strict=True)]
        parts.append(f"**{group}**\n\n{table(headings, rows)}")
    if found.get("rates"):
        rows = [(i["name"], f"{i['clients']}", number(i["per_second"]), f"{i['n']}") for i in found["rates"]]
        parts.append(f"**commands a second**\n\n{table(['what', 'clients', 'per second', 'n'], rows)}")
    if found.get("idle"):
        rows = [(i["name"], number(i["memory_mb"]), number(i["cpu_percent"]), f"{i['n']}") for i in found["idle"]]
        parts.append(f"**an idle sandbox**\n\n{table(['what', 'memory MB', 'CPU %', 'n'], rows)}")
    for curve in found.get("curves", []):
        rows = [(f"{x:,.0f}", number(y)) for x, y in curve["points"]]
        parts.append(f"**{curve['name']}**\n\n{table([curve['x'], curve['y']], rows)}")
    missing = [f"- {item['name']}: {item['reason']}" for item in found.get("missing", [])]
    if missing:
        parts.append("Not measured here:\n\n" + "\n".join(missing))
    return parts


def figures_block(found: Sequence[dict[str, Any]]) -> str:
    parts = ["![what was measured](performance.svg)"]
    for item in found:
        parts.append(f"### {item['benchmark']}, {item['at'][:10]}, {item['cpus']} cores, kernel {item['kernel']}")
        parts += figure_tables(item)
    return "\n\n".join(parts)


def promises_block(found: Sequence[dict[str, Any]]) -> str:
    rows = [
        (
            promise["text"],
            promise["wanted"],
            promise["measured"],
            str(promise.get("n") or "–"),
            "kept" if promise["is_kept"] else "**not reached**",
            f"`python -m benchmarks.{item['benchmark']}`",
            item["at"][:10],
        )
        for item in found
        for promise in item["promises"]
    ]
    if not rows:
        return "Nothing has been measured yet."
    return table(["promise", "figure", "measured", "n", "", "benchmark", "date"], rows)


def replace_block(text: str, name: str, content: str) -> str:
    """Replace the text between the two marks of a block."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"cannot publish: the block {name} is not marked exactly once")
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n\n{content}\n\n{end}", text)


def publish(docs: Path) -> list[Path]:
    found = results()
    drawn = docs / "performance.svg"
    drawn.write_text(picture(found))
    written = [drawn]
    for name, block, content in (
        ("performance.md", "figures", figures_block(found)),
        ("specification.md", "promises", promises_block(found)),
    ):
        path = docs / name
        path.write_text(replace_block(path.read_text(), block, content))
        written.append(path)
    return written


def preview() -> Path:
    """Write the same picture to the results, where it changes no file in the repository."""
    path = RESULTS / "performance.svg"
    path.write_text(picture(results()))
    return path


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", type=Path, default=DOCS)
    for written in publish(parser.parse_args().docs):
        print(f"written: {written.name}")
