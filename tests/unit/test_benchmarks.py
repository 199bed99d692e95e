"""The benchmark's own arithmetic, tables and charts, and one real contender."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks import compare, publish, soak
from benchmarks.afternoon import CALLS, CHUNK, FILES, play, script
from benchmarks.contest import contest
from benchmarks.measure import Figure, Rate, figure, slope
from benchmarks.peers import ENTRIES, Absent, pick
from benchmarks.peers.docker_raw import unpack
from benchmarks.peers.plain_container import content_of, tar_of
from benchmarks.peers.posix_spawn import Spawned
from benchmarks.picture import Bar, Chart, draw, ticks


def test_a_figure_is_computed_from_measured_times() -> None:
    found = figure("x", [5.0, 1.0, 3.0, 2.0, 100.0])
    assert (found.n, found.p50_ms, found.p95_ms) == (5, 3.0, 100.0)
    assert figure("x", [7.0]) == Figure("x", 1, 7.0, 7.0)


def test_a_figure_without_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot tell how long x takes"):
        figure("x", [])


def test_a_slope_is_that_of_the_line_through_the_points() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == pytest.approx(2)
    assert slope([(0, 4), (1, 4), (2, 4)]) == 0
    assert slope([(1, 1)]) == 0


def test_ours_and_the_baseline_are_always_included() -> None:
    ours = ["sandboxd", "sandboxd, pool", "sandboxd, pool, unseen texts"]
    assert [entry.name for entry in pick(["none"])] == [*ours, "posix_spawn"]
    assert pick(["all"]) == list(ENTRIES)
    assert {"swe-rex", "llm-sandbox, pool"} <= {entry.name for entry in pick(["swe-rex", "llm-sandbox"])}


def test_an_unknown_peer_or_job_is_named() -> None:
    with pytest.raises(ValueError, match="cannot find the peer nobody"):
        pick(["nobody"])
    with pytest.raises(ValueError, match="cannot find the job nothing"):
        bench.plan(["nothing"], ["none"], is_quick=True)


def test_a_part_of_the_comparison_is_a_separate_job() -> None:
    (command,) = bench.plan(["first"], ["none"], is_quick=True)
    assert command[2:] == ["benchmarks.compare", "--rounds", "20", "--peers", "none", "--jobs", "first"]
    assert bench.results_of(command) == "compare-part"
    whole = bench.plan(list(bench.JOBS), ["all"], is_quick=False)
    assert [bench.results_of(command) for command in whole] == list(bench.JOBS)


def test_an_afternoon_is_200_calls_and_edits_only_what_it_has_written() -> None:
    calls = script("/w")
    assert len(calls) == CALLS
    assert CALLS % CHUNK == 0
    written: set[str] = set()
    for call in calls:
        if call.verb == "write":
            written.add(call.path)
        elif call.verb in {"edit", "read", "run"}:
            assert call.path in written
    assert len(written) == FILES


@pytest.mark.anyio
async def test_a_session_without_tools_edits_by_reading_and_writing(tmp_path: Path) -> None:
    calls = script(str(tmp_path))
    first_edit = next(number for number, call in enumerate(calls) if call.verb == "edit")
    took = await play(Spawned(tmp_path), calls[: first_edit + 1])
    assert len(took) == first_edit + 1
    assert 'VERSION = "after"' in Path(calls[first_edit].path).read_text()


@pytest.mark.anyio
async def test_a_worker_answers_and_reports_what_it_cannot_do(tmp_path: Path) -> None:
    entries = [entry for entry in ENTRIES if entry.name == "posix_spawn"]
    async with contest(entries, tmp_path) as ring:
        worker = ring.workers["posix_spawn"]
        await worker.ask("open", name="s0")
        assert len((await worker.ask("run", name="s0", times=3))["took_ms"]) == 3
        await worker.ask("write", name="s0", times=1)
        assert len((await worker.ask("read", name="s0", times=2))["took_ms"]) == 2
        assert (await worker.ask("rate", names=["s0"], clients=1, seconds=0.05))["done"] > 0
        with pytest.raises(Absent, match="KeyError"):
            await worker.ask("run", name="nobody", times=1)
        await worker.ask("close", name="s0")
    assert not (tmp_path / "worker0" / "s0").exists()


@pytest.mark.anyio
async def test_a_contender_that_cannot_start_is_reported_with_its_reason(tmp_path: Path) -> None:
    from benchmarks.peers import Entry

    async with contest([Entry("nobody", "not_there", "bare")], tmp_path) as ring:
        assert ring.workers == {}
        assert "not installed" in ring.missing[0].reason


def test_the_engines_frames_and_archives_are_read_back() -> None:
    frame = b"\x01\0\0\0\0\0\0\x03abc" + b"\x02\0\0\0\0\0\0\x02de"
    assert unpack(frame) == "abcde"
    assert content_of(tar_of("a.txt", b"text")) == b"text"


def test_promises_are_reported_as_kept_or_not_reached() -> None:
    found = compare.Found()
    found.figures["command, `true`"] = [
        Figure("sandboxd", 10, 3.0, 4.0),
        Figure("posix_spawn", 10, 1.0, 2.0),
        Figure("swe-rex", 10, 9.0, 9.0),
    ]
    found.rates = [Rate("sandboxd", 32, 100, 400.0), Rate("docker exec, CLI", 32, 10, 10.0)]
    verdicts = {(p.text, p.wanted): p.is_kept for p in compare.promises_of(found)}
    assert verdicts == {
        ("a command compared with a bare process", "≤ 2.5 × posix_spawn"): False,
        ("a command is faster", "≥ 2 × swe-rex"): True,
        ("commands a second, 32 clients", "≥ 30 × docker exec, CLI"): True,
    }


def test_a_soak_that_grows_is_not_flat() -> None:
    def samples(growth: float) -> list[dict[str, float]]:
        return [{"minutes": float(n), "rss_mb": 80 + growth * n, "fds": 20.0} for n in range(61)]

    assert all(promise.is_kept for promise in soak.judge(samples(0.01)))
    grown = {promise.text.rpartition(" ")[2]: promise.is_kept for promise in soak.judge(samples(1.0))}
    assert grown == {"rss_mb": False, "fds": True}


def test_a_short_soak_gives_no_verdict() -> None:
    assert soak.judge([{"minutes": n / 10, "rss_mb": 80.0} for n in range(20)]) == []


def test_a_chart_is_well_formed_and_escapes_names() -> None:
    chart = Chart("A & B", "ms", (Bar("<ours>", 0.5, "ours"), Bar("theirs", 900.0, "peer")))
    text = draw([chart], [("memory", "sandboxes", "MB", [(0, 80.0), (100, 95.0)])], "today")
    root = ET.fromstring(text)
    assert "prefers-color-scheme: dark" in text
    assert len([node for node in root.iter() if node.tag.endswith("rect")]) == 2
    assert "<ours>" in {node.text for node in root.iter() if node.tag.endswith("text")}


def test_the_scale_covers_every_value() -> None:
    assert ticks(0.5, 900) == [0.1, 1, 10, 100, 1000]
    assert ticks(3, 3) == [1, 10]


def test_publishing_touches_only_the_marked_block() -> None:
    page = "before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n"
    assert publish.replace_block(page, "figures", "new \\1") == (
        "before\n<!-- figures: begin -->\n\nnew \\1\n\n<!-- figures: end -->\nafter\n"
    )
    with pytest.raises(ValueError, match="cannot publish"):
        publish.replace_block("nothing here", "figures", "new")


def test_the_docs_have_the_blocks_that_publishing_fills() -> None:
    for name, block in (("performance.md", "figures"), ("specification.md", "promises")):
        assert publish.replace_block((publish.DOCS / name).read_text(), block, "x")


def test_a_report_becomes_tables() -> None:
    report = {
        "benchmark": "compare",
        "at": "2026-01-02T03:04:05+00:00",
        "cpus": 2,
        "kernel": "6.1",
        "figures": {"command": [{"name": "sandboxd", "n": 3, "p50_ms": 2.0, "p95_ms": 3.0}]},
        "rates": [{"name": "sandboxd", "clients": 8, "n": 10, "per_second": 500.0}],
        "missing": [{"name": "inspect-ai", "reason": "no compose plugin"}],
        "promises": [{"text": "quick", "wanted": "≤ 1", "measured": "2", "is_kept": False}],
    }
    text = publish.figures_block([report])
    assert "| sandboxd | 2.00 | 3.00 | 3 | 1.00 |" in text
    assert "- inspect-ai: no compose plugin" in text
    assert "**not reached**" in publish.promises_block([report])


def test_what_a_thousand_sandboxes_left_behind_is_counted() -> None:
    clean = dict.fromkeys(soak.LEFT, 3.0)
    seen = soak.Seen(cycles=1000, before=clean, after={**clean, "fds": 3.0 + soak.LOOSE})
    assert soak.judge_leftovers(seen).is_kept
    for name in soak.LEFT:
        left = soak.Seen(cycles=1000, before=clean, after={**clean, name: 4.0 + soak.LOOSE})
        assert not soak.judge_leftovers(left).is_kept, name
    one_more = soak.Seen(cycles=1000, before=clean, after={**clean, "mounts": 4.0})
    assert not soak.judge_leftovers(one_more).is_kept
