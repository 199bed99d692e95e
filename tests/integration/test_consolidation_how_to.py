"""The commands of the how-to, word for word against a daemon: what it shows is what one gets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.consolidation.settings import ConsolidationOptions
from tests.integration.test_readme import console_steps
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "consolidation.md"
_VARIES = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")


@pytest.fixture
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    """A daemon that nobody has talked to before."""
    running = RunningDaemon(image=agent_image)
    try:
        yield running.start()
    finally:
        running.stop()


def test_the_commands_of_the_page_show_what_one_gets(daemon: RunningDaemon, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SANDBOXD_SOCKET": str(daemon.socket),
    }
    steps = console_steps(PAGE.read_text())
    assert len(steps) == 9
    for command, shown in steps:
        placed = command.replace("/run/sandboxd.sock", str(daemon.socket))
        done = subprocess.run(
            ["bash", "-c", placed.replace("/tmp/sandboxd-how-to", str(tmp_path))],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert _VARIES.sub("", done.stdout.rstrip("\n")) == _VARIES.sub("", shown), command


def test_the_settings_of_the_page_are_the_defaults() -> None:
    (source,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert ConsolidationOptions(**tomllib.loads(source)["consolidation"]) == ConsolidationOptions()
