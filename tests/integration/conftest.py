"""A daemon for the tests that only talk to it. A test that kills its daemon starts its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandboxd.client import Client
from tests.running import RunningDaemon


@pytest.fixture(scope="session")
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    running = RunningDaemon(image=agent_image)
    try:
        yield running.start()
        assert running.terminate() == 0  # I11
    finally:
        running.stop()


@pytest.fixture
def client(daemon: RunningDaemon) -> Iterator[Client]:
    with daemon.client() as client:
        yield client
