"""One container for each test module; a fresh connection to its runner for each test."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import pytest

from sandboxd.runner.client import RunnerClient
from tests.integration.runner.box import Box


@pytest.fixture(scope="module")
def box(agent_image: str) -> Iterator[Box]:
    box = Box(agent_image)
    try:
        yield box
    finally:
        box.remove()


@pytest.fixture
async def runner(box: Box) -> AsyncGenerator[RunnerClient]:
    async with box.connected() as client:
        yield client
