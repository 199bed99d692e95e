"""The store stops and comes back: nothing acknowledged is lost, and nobody restarts anything. (I1, I2, I4)"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Client
from sandboxd.errors import StoreUnavailable
from tests.faults.test_memory_killed import NOTES, inside, wait_in_sync
from tests.running import RunningDaemon
from tests.stopping_store import DATABASE, STOPPED

pytestmark = [pytest.mark.engine]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """While this file exists, the store is down."""
    return tmp_path / "stopped"


@pytest.fixture
def environment(stopped: Path, tmp_path: Path) -> dict[str, str]:
    return {STOPPED: str(stopped), DATABASE: str(tmp_path / "memo.db"), "PYTHONPATH": str(ROOT)}


@pytest.fixture
def client(daemon: RunningDaemon, environment: dict[str, str], request: pytest.FixtureRequest) -> Iterator[Client]:
    daemon.settings |= {"store": "python:tests.stopping_store:make", "outbox": getattr(request, "param", False)}
    daemon.start(environment=environment)
    with daemon.client() as client:
        client.ensure_sandbox("s1", user="ada")
        client.write_memo("s1", "NOTES.md", "before\n")
        yield client


def test_without_an_outbox_a_write_fails_clearly_and_the_sandbox_works_on(client: Client, stopped: Path) -> None:
    stopped.touch()
    with pytest.raises(StoreUnavailable, match="cannot"):
        client.append_memo("s1", "NOTES.md", "lost\n")
    with pytest.raises(StoreUnavailable):
        client.read_memo("s1", "NOTES.md")  # an outage never looks like an empty document
    with pytest.raises(StoreUnavailable):
        client.ensure_sandbox("s2", user="ada")  # a snapshot is complete or the create fails
    assert inside(client, "s1", NOTES) == "before\n"
    stopped.unlink()
    client.append_memo("s1", "NOTES.md", "after\n")
    assert inside(client, "s1", NOTES) == "before\nafter\n"
    assert [sandbox.session for sandbox in client.list_sandboxes()] == ["s1"]


@pytest.mark.parametrize("client", [True], indirect=True)
@pytest.mark.parametrize("is_killed", [False, True], ids=["", "and the daemon is killed meanwhile"])
def test_with_an_outbox_writes_are_kept_in_order_and_delivered(
    client: Client, daemon: RunningDaemon, environment: dict[str, str], stopped: Path, is_killed: bool
) -> None:
    stopped.touch()
    queued = [client.append_memo("s1", "NOTES.md", f"kept {number}\n") for number in range(5)]
    assert all(answer.queued for answer in queued)
    assert inside(client, "s1", NOTES).endswith("kept 4\n")
    if is_killed:
        daemon.kill()
        daemon.start(environment=environment)
    stopped.unlink()
    with daemon.client() as again:
        expected = "before\n" + "".join(f"kept {number}\n" for number in range(5))
        while again.read_memo("s1", "NOTES.md").text != expected:
            pass  # delivered by itself; the test's time limit bounds this
        wait_in_sync(again, "s1")
        assert inside(again, "s1", NOTES) == expected
