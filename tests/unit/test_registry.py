"""The registry survives restarts, refuses what it cannot read, and never replaces itself with an empty one."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from memo.ids import AgentId
from sandboxd.errors import RegistryCorrupt
from sandboxd.sandboxes.lifecycle import State
from sandboxd.sandboxes.registry import Registry
from tests.unit.test_lifecycle import ADA, record

pytestmark = pytest.mark.anyio


async def test_the_next_daemon_reads_a_saved_record_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    owner = replace(ADA, agent=AgentId("coder"), env={"A": "ä\n"})
    kept = record(State.GONE, cause="oom", owner=owner, generation=3, from_pool=True)
    first = Registry(path)
    await first.open()
    await first.save(record())
    await first.save(kept)
    await first.aclose()
    second = Registry(path)
    await second.open()
    assert await second.load() == [kept]
    await second.forget(kept.id)
    assert await second.load() == []
    await second.aclose()


async def test_many_sandboxes_may_have_no_owner_and_a_claim_is_durable(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    await registry.open()
    warm = [record(State.WARM, id=f"{n:016}", owner=None, container=f"c{n}") for n in range(3)]
    for one in warm:
        await registry.save(one)
    claimed = replace(warm[1], owner=ADA, state=State.STARTING, from_pool=True)
    await registry.save(claimed)
    assert await registry.load() == [warm[0], claimed, warm[2]]
    with pytest.raises(RegistryCorrupt):  # I6: one container per (tenant, session)
        await registry.save(replace(warm[2], owner=ADA))
    await registry.aclose()


VERSION_1 = """
CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY, tenant TEXT NOT NULL, session TEXT NOT NULL, record TEXT NOT NULL, UNIQUE (tenant, session)
);
PRAGMA user_version = 1;
"""


def make_version_1(path: Path, record: str) -> None:
    db = sqlite3.connect(path)
    db.executescript(VERSION_1)
    db.execute("INSERT INTO sandboxes VALUES ('0123456789abcdef', 'acme', 's1', ?)", (record,))
    db.commit()
    db.close()


async def test_the_registry_of_an_earlier_version_is_migrated_with_its_sandboxes(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    old = {
        "id": "0123456789abcdef",
        "ref": "acme:s1",
        "user": "ada",
        "agent": None,
        "env": {"A": "b"},
        "image": "image:1",
        "limits": {"memory_mb": 64},
        "engine": "docker",
        "secret": "hush",
        "created_at": "2026-01-01T00:00:00+00:00",
        "state": "ready",
        "generation": 2,
        "container": "c1",
        "cause": None,
    }
    make_version_1(path, json.dumps(old))
    registry = Registry(path)
    for _ in range(2):  # the second time it has the current version
        await registry.open()
        (kept,) = await registry.load()
        assert kept.owner == replace(ADA, env={"A": "b"})
        assert (kept.state, kept.generation, kept.container, kept.from_pool) == (State.READY, 2, "c1", False)
        assert kept.shape.limits.memory_mb == 64
        await registry.save(record(State.WARM, id="f" * 16, owner=None, container="c2"))
        await registry.forget("f" * 16)
        await registry.aclose()


async def test_an_earlier_registry_that_cannot_be_read_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    make_version_1(path, '{"id": 1}')
    before = path.read_bytes()
    with pytest.raises(RegistryCorrupt, match="cannot read a record"):
        await Registry(path).open()
    assert path.read_bytes() == before


async def test_only_the_daemon_may_read_it(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry.db")
    await registry.open()
    await registry.save(record())
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    await registry.aclose()
    assert modes == {0o600}


@pytest.mark.parametrize("keep_bytes", [0, 100, 4096, 6000])
async def test_a_truncated_file_is_refused_and_unchanged(tmp_path: Path, keep_bytes: int) -> None:
    path = tmp_path / "registry.db"
    registry = Registry(path)
    await registry.open()
    await registry.save(record())
    await registry.aclose()
    os.truncate(path, keep_bytes)
    before = path.read_bytes()
    with pytest.raises(RegistryCorrupt, match="cannot open the registry"):
        await Registry(path).open()
    assert path.read_bytes() == before


async def test_garbage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(RegistryCorrupt):
        await Registry(path).open()


async def test_a_newer_version_is_refused_with_the_next_step(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(RegistryCorrupt, match="upgrade sandboxd"):
        await Registry(path).open()


async def test_a_record_that_cannot_be_read_is_an_error_not_an_empty_registry(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    registry = Registry(path)
    await registry.open()
    await registry.save(record())
    with sqlite3.connect(path) as db:
        db.execute("UPDATE sandboxes SET record = '{}'")
    db.close()
    with pytest.raises(RegistryCorrupt, match="record"):
        await registry.load()
    await registry.aclose()
