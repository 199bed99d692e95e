"""The stores of the crash suite: two built-in ones and a plain third-party provider. All outlive a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import memo
from tests.plain_store import PLACE

ROOT = Path(__file__).parents[2]
STORES = ("sqlite", "file", "plain")


def store_url(kind: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a store in this directory, for daemons started from here and for this process."""
    if kind == "plain":
        monkeypatch.setenv(PLACE, str(place))
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        return "python:tests.plain_store:make"
    return f"sqlite:///{place}.db" if kind == "sqlite" else f"file://{place}"


def size_of(variable: str, default: int) -> int:
    """Return the size of a test, which is small unless the environment sets it."""
    return int(os.environ.get(variable) or default)


async def write_directly(url: str, owner: str, scope: str, name: str, content: str) -> None:
    """Write like a host job that opens the store itself."""
    async with memo.open_store(url) as store:
        await store.write_memory_document("default", owner, scope, name, content)
