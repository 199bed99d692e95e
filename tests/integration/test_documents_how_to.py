"""The how-to on documents, run against a daemon exactly as written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import RunningDaemon
from tests.tour import console_steps, run_step

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "documents.md"


def test_the_commands_of_the_page_print_what_the_page_shows(daemon: RunningDaemon) -> None:
    steps = console_steps(PAGE.read_text())
    assert len(steps) == 10
    for command, shown in steps:
        assert run_step(command, daemon) == shown, command
