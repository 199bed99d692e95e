"""The how-to on events, run against a daemon exactly as written; the daemon is killed where the page says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.models.event import EventsQuery
from tests.running import RunningDaemon
from tests.tour import console_steps, run_step

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "watch-events.md"


@pytest.fixture
def own(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    """A daemon of its own, because it is killed."""
    running = RunningDaemon(image=agent_image)
    try:
        yield running.start()
    finally:
        running.stop()


def test_the_page_prints_what_it_shows_also_across_a_kill(own: RunningDaemon) -> None:
    before, kill, after = PAGE.read_text().partition("Killing\nand restarting the daemon changes nothing")
    assert kill
    assert (len(console_steps(before)), len(console_steps(after))) == (5, 2)
    for command, shown in console_steps(before):
        assert run_step(command, own) == shown, command
    own.kill()
    own.start()
    for command, shown in console_steps(after):
        assert run_step(command, own) == shown, command


def test_the_page_names_every_parameter() -> None:
    page = PAGE.read_text()
    assert [name for name in EventsQuery.model_fields if f"`{name}" not in page] == []
