"""The how-to on ports, run against a daemon exactly as written."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.running import RunningDaemon
from tests.tour import console_steps, environment_of, run_step

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ports.md"


@pytest.fixture
def tcp_daemon(agent_image: str, tmp_path: Path) -> Iterator[RunningDaemon]:
    token_file = tmp_path / "token"
    token_file.write_text("0123456789abcdef")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running = RunningDaemon(image=agent_image, tcp=f"127.0.0.1:{port}", token_file=token_file)
    try:
        yield running.start()
    finally:
        running.stop()


def test_the_page_prints_what_it_shows(tcp_daemon: RunningDaemon) -> None:
    steps = console_steps(PAGE.read_text())
    assert len(steps) == 5
    for command, shown in steps:
        assert run_step(command, tcp_daemon) == shown, command
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=environment_of(tcp_daemon),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[8000]", "hello from inside", "HTTP/1.0 200 OK", "True UTC"]
