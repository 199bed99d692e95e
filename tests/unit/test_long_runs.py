"""The sample of kill points keeps every point on SQLite and on one other store; a long run includes them all."""

from __future__ import annotations

from itertools import product

import pytest

from tests.long_runs import kill_pairs

STORES = ("sqlite", "file", "plain")
POINTS = ("received", "checked", "committed", "mirrored", "answer")


@pytest.fixture(params=["", "0"])
def short_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXD_TEST_LONG", request.param)


@pytest.mark.usefixtures("short_run")
def test_a_sample_kills_at_every_point_on_the_first_store_and_on_one_other() -> None:
    pairs = kill_pairs(STORES, POINTS)
    assert len(set(pairs)) == len(pairs) == 2 * len(POINTS)
    for point in POINTS:
        assert ("sqlite", point) in pairs
        assert (("file", point) in pairs) != (("plain", point) in pairs)


def test_a_long_run_kills_at_every_point_on_every_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXD_TEST_LONG", "1")
    assert sorted(kill_pairs(STORES, POINTS)) == sorted(product(STORES, POINTS))
