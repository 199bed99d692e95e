"""A separate daemon for every test here, because it will be killed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.running import RunningDaemon


@pytest.fixture
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    running = RunningDaemon(image=agent_image)
    try:
        yield running
    finally:
        running.stop()
