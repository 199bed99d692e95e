"""Fixtures of every suite. `test_suites.py` starts the daemon, and SANDBOXD_SOCKET names it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from sandboxd.client import Client


@pytest.fixture(scope="session")
def client() -> Iterator[Client]:
    with Client() as client:
        yield client


@pytest.fixture(scope="module")
def session(client: Client) -> Iterator[str]:
    """The session of a sandbox that one module shares."""
    name = f"suite-{uuid.uuid4().hex}"
    client.ensure_sandbox(name, "suites")
    yield name
    client.destroy_sandbox(name)
