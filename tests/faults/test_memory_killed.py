"""kill -9 while memory is written: what was acknowledged is there, and every mirror ends at the store. (I1, I2, I3)"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator

import anyio
import pytest

import memo
from sandboxd.client import Client
from sandboxd.client.errors import DaemonUnreachable
from sandboxd.errors import SandboxdError
from sandboxd.failpoints import POINTS
from tests.running import RunningDaemon

pytestmark = [pytest.mark.engine]

WRITE_POINTS = sorted(point for point in POINTS if point.startswith("writeback.") and point != "writeback.queued")
REFRESH_POINTS = sorted(point for point in POINTS if point.startswith("refresh."))
NOTES = "/workspace/memo/session/NOTES.md"
USER = "/workspace/memo/user/USER.md"
RANDOM_KILLS = 5


@pytest.fixture(params=["sqlite", "file"])
def remembering(request: pytest.FixtureRequest, daemon: RunningDaemon) -> RunningDaemon:
    """A daemon on each store that outlives a process."""
    scheme = {"sqlite": "sqlite:///{}", "file": "file://{}"}[request.param]
    daemon.settings["store"] = scheme.format(daemon.data.parent / f"memory-{request.param}")
    return daemon


def inside(client: Client, session: str, path: str) -> str:
    return client.exec(session, ["cat", path]).stdout


def wait_in_sync(client: Client, session: str) -> None:
    """Ask until every file of the mirror is the store's newest; the test's own time limit bounds this."""
    while not all(file.in_sync for file in client.get_mirror(session)):
        pass


def assert_whole(client: Client, session: str, acknowledged: str, attempted: str) -> None:
    stored = client.read_memo(session, "NOTES.md").text
    assert stored in (acknowledged, attempted)
    wait_in_sync(client, session)
    assert inside(client, session, NOTES) == stored


@pytest.mark.parametrize("point", WRITE_POINTS)
def test_a_write_that_was_killed_is_there_whole_or_not_at_all(remembering: RunningDaemon, point: str) -> None:
    anyio.run(_write_directly, str(remembering.settings["store"]), "s1", "session", "NOTES.md", "acknowledged")
    remembering.start(failpoint=f"{point}=kill")
    with remembering.client() as client:
        client.ensure_sandbox("s1", user="ada")
        assert inside(client, "s1", NOTES) == "acknowledged"
        with pytest.raises(DaemonUnreachable):
            client.write_memo("s1", "NOTES.md", "attempted", idempotency_key="once")
    assert remembering.wait() == -signal.SIGKILL
    remembering.start()
    with remembering.client() as client:
        assert_whole(client, "s1", "acknowledged", "attempted")
        revision = client.write_memo("s1", "NOTES.md", "attempted").revision
        assert revision in (2, 3)
        assert inside(client, "s1", NOTES) == "attempted"


@pytest.mark.parametrize("point", REFRESH_POINTS)
def test_a_refresh_that_was_killed_is_made_good_at_the_next_start(remembering: RunningDaemon, point: str) -> None:
    """A host job writes to the store directly; the daemon dies while it brings that into the mirror."""
    url = str(remembering.settings["store"])
    anyio.run(_write_directly, url, "ada", "user", "USER.md", "old")
    remembering.start(failpoint=f"{point}=kill")
    with remembering.client() as client:
        client.ensure_sandbox("s1", user="ada")
    anyio.run(_write_directly, url, "ada", "user", "USER.md", "new")
    assert remembering.wait() == -signal.SIGKILL
    remembering.start()
    with remembering.client() as client:
        wait_in_sync(client, "s1")
        assert inside(client, "s1", USER) == "new"


async def _write_directly(url: str, owner: str, scope: str, name: str, content: str) -> None:
    async with memo.open_store(url) as store:
        await store.write_memory_document("default", owner, scope, name, content)


def test_kills_at_random_moments_lose_nothing_that_was_acknowledged(remembering: RunningDaemon) -> None:
    chance = random.Random(20261116)
    acknowledged: list[str] = []
    numbers = iter(range(1_000_000))
    remembering.start()
    with remembering.client() as client:
        client.ensure_sandbox("s1", user="ada")
    for _ in range(RANDOM_KILLS):
        writer = threading.Thread(target=_write_until_dead, args=(remembering, acknowledged, numbers))
        writer.start()
        writer.join(chance.uniform(0.05, 0.6))
        remembering.kill()
        writer.join(30)
        remembering.start()
        with remembering.client() as client:
            stored = client.read_memo("s1", "NOTES.md").text.splitlines() if acknowledged else []
            missing = [line for line in acknowledged if line not in stored]
            assert missing == []
            assert len(stored) == len(set(stored))
            assert len(stored) - len(acknowledged) <= RANDOM_KILLS  # a write without an answer may have been made
            wait_in_sync(client, "s1")
            assert inside(client, "s1", NOTES).splitlines() == stored
    assert len(acknowledged) > RANDOM_KILLS


def _write_until_dead(daemon: RunningDaemon, acknowledged: list[str], numbers: Iterator[int]) -> None:
    with daemon.client() as client:
        while True:
            line = f"line {next(numbers)}"
            try:
                client.append_memo("s1", "NOTES.md", f"{line}\n")
            except SandboxdError:
                return
            acknowledged.append(line)
