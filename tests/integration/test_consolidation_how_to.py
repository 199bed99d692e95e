"""The commands of the how-to page, run as they are against a daemon, print what the page shows."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.compaction_settings import AutoCompactionOptions
from sandboxd.consolidation_settings import ConsolidationOptions
from tests.running import RunningDaemon
from tests.tour import console_steps, run_step

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "consolidation.md"
_VARIES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")


@pytest.fixture
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    """A fresh daemon."""
    running = RunningDaemon(image=agent_image)
    try:
        yield running.start()
    finally:
        running.stop()


def test_the_commands_of_the_page_print_what_it_shows(daemon: RunningDaemon, tmp_path: Path) -> None:
    steps = console_steps(PAGE.read_text())
    assert len(steps) == 9
    for command, shown in steps:
        printed = run_step(command.replace("/tmp/sandboxd-how-to", str(tmp_path)), daemon)
        assert _VARIES.sub("", printed) == _VARIES.sub("", shown), command


def test_the_settings_of_the_page_are_the_defaults() -> None:
    first, second = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert ConsolidationOptions(**tomllib.loads(first)["consolidation"]) == ConsolidationOptions()
    switched_on = AutoCompactionOptions(enabled=True)
    assert AutoCompactionOptions(**tomllib.loads(second)["compaction"]) == switched_on
