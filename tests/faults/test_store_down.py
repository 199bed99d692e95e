"""The store stops and comes back: no acknowledged write is lost, and no restart is needed. (I1, I2, I4)"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Client
from sandboxd.client.errors import DaemonUnreachable
from sandboxd.errors import SandboxdError, StoreUnavailable
from sandboxd.failpoints import POINTS
from tests.faults.stores import STORES, size_of, store_url
from tests.faults.test_memory_killed import NOTES, inside, wait_in_sync
from tests.running import RunningDaemon, newest_event
from tests.stopping_store import BEHIND, MOST_BYTES, STOPPED

pytestmark = [pytest.mark.engine]

ROOT = Path(__file__).parents[2]
OUTAGE_S = size_of("SANDBOXD_TEST_OUTAGE_S", 2)
WRITERS = 4
OUTBOX_POINTS = sorted(point for point in POINTS if point.startswith("outbox."))


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """While this file exists, the store is down."""
    return tmp_path / "stopped"


@pytest.fixture(params=["sqlite"])
def stopping(
    request: pytest.FixtureRequest,
    daemon: RunningDaemon,
    stopped: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> RunningDaemon:
    """A daemon, not started yet, in front of a store that can be stopped."""
    monkeypatch.setenv(STOPPED, str(stopped))
    monkeypatch.setenv(BEHIND, store_url(request.param, tmp_path / "memory", monkeypatch))
    monkeypatch.setenv(MOST_BYTES, "100000")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    daemon.settings["store"] = "python:tests.stopping_store:make"
    return daemon


@pytest.fixture
def client(stopping: RunningDaemon, request: pytest.FixtureRequest) -> Iterator[Client]:
    stopping.start(outbox=getattr(request, "param", False))
    with stopping.client() as client:
        client.ensure_sandbox("s1", user="ada")
        client.write_memo("s1", "NOTES.md", "before\n")
        yield client


def wait_for_text(client: Client, expected: str) -> None:
    """Poll the store until it has this text; the test's time limit bounds this."""
    while _text(client) != expected:
        pass


def _text(client: Client) -> str | None:
    try:
        return client.read_memo("s1", "NOTES.md").text
    except StoreUnavailable:
        return None


def test_without_an_outbox_a_write_fails_clearly_and_the_sandbox_keeps_working(client: Client, stopped: Path) -> None:
    stopped.touch()
    with pytest.raises(StoreUnavailable, match="cannot"):
        client.append_memo("s1", "NOTES.md", "lost\n")
    with pytest.raises(StoreUnavailable):
        client.read_memo("s1", "NOTES.md")  # an outage never looks like an empty document
    with pytest.raises(StoreUnavailable):
        client.ensure_sandbox("s2", user="ada")  # a snapshot is complete or the create fails
    edit = {"file_path": NOTES, "old_string": "before", "new_string": "edited"}
    refused = client.tool("s1", "Edit", edit, idempotency_key="edit")
    assert (refused.ok, refused.details["code"]) == (False, "store.unavailable")
    assert inside(client, "s1", NOTES) == "before\n"
    stopped.unlink()
    client.append_memo("s1", "NOTES.md", "after\n")
    assert client.tool("s1", "Edit", edit, idempotency_key="edit").ok  # nothing was done under this key
    assert inside(client, "s1", NOTES) == "edited\nafter\n"
    assert [sandbox.session for sandbox in client.list_sandboxes()] == ["s1"]


@pytest.mark.parametrize("client", [True], indirect=True)
@pytest.mark.parametrize("is_killed", [False, True], ids=["", "and the daemon is killed"])
def test_with_an_outbox_writes_are_queued_in_order_and_delivered(
    client: Client, stopping: RunningDaemon, stopped: Path, is_killed: bool
) -> None:
    stopped.touch()
    queued = [client.append_memo("s1", "NOTES.md", f"kept {number}\n") for number in range(5)]
    assert all(answer.queued for answer in queued)
    assert inside(client, "s1", NOTES).endswith("kept 4\n")
    if is_killed:
        stopping.kill()
        stopping.start(outbox=True)
    stopped.unlink()
    with stopping.client() as again:
        expected = "before\n" + "".join(f"kept {number}\n" for number in range(5))
        wait_for_text(again, expected)
        wait_in_sync(again, "s1")
        assert inside(again, "s1", NOTES) == expected


@pytest.mark.parametrize("stopping", STORES, indirect=True)
@pytest.mark.parametrize("point", OUTBOX_POINTS)
def test_a_queued_write_is_delivered_once_even_if_the_daemon_is_killed(
    stopping: RunningDaemon, stopped: Path, point: str
) -> None:
    stopping.start(outbox=True, failpoint=f"{point}=kill")
    with stopping.client() as client:
        client.ensure_sandbox("s1", user="ada")
        client.write_memo("s1", "NOTES.md", "before\n")
        stopped.touch()
        if point == "outbox.kept":
            with pytest.raises(DaemonUnreachable):
                client.append_memo("s1", "NOTES.md", "kept\n")
        else:
            assert client.append_memo("s1", "NOTES.md", "kept\n").queued
            stopped.unlink()
    stopping.wait()
    stopped.unlink(missing_ok=True)
    stopping.start(outbox=True)
    with stopping.client() as client:
        wait_for_text(client, "before\nkept\n")
        wait_in_sync(client, "s1")
        assert inside(client, "s1", NOTES) == "before\nkept\n"


@pytest.mark.timeout(180 + OUTAGE_S * 4)
@pytest.mark.parametrize("client", [False, True], indirect=True, ids=["refused", "kept"])
def test_a_store_that_stops_under_load_loses_no_acknowledged_write(
    client: Client, stopping: RunningDaemon, stopped: Path
) -> None:
    acknowledged: list[list[str]] = [[] for _ in range(WRITERS)]
    is_over = threading.Event()
    threads = [
        threading.Thread(target=_write_until_over, args=(stopping, number, acknowledged[number], is_over))
        for number in range(WRITERS)
    ]
    for thread in threads:
        thread.start()
    try:
        for is_down in (False, True, False):  # the phases before, during and after the outage
            stopped.touch() if is_down else stopped.unlink(missing_ok=True)
            is_over.wait(OUTAGE_S if is_down else 1)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(60)
    for number in range(WRITERS):
        name = f"NOTES-{number}.md"
        assert len(acknowledged[number]) > 1
        while client.read_memo("s1", name).text.splitlines()[: len(acknowledged[number])] != acknowledged[number]:
            pass  # queued writes are delivered without a trigger; the test's time limit bounds this
        lines = client.read_memo("s1", name).text.splitlines()
        assert len(lines) - len(acknowledged[number]) <= 1
    wait_in_sync(client, "s1")
    for number in range(WRITERS):
        lines = inside(client, "s1", f"/workspace/memo/session/NOTES-{number}.md").splitlines()
        assert lines[: len(acknowledged[number])] == acknowledged[number]
    assert client.exec("s1", "echo fine").stdout == "fine\n"


def _write_until_over(daemon: RunningDaemon, number: int, acknowledged: list[str], is_over: threading.Event) -> None:
    """Append lines; the whole text must stay below the store's limit."""
    line_number = 0
    with daemon.client() as client:
        while not is_over.is_set() and line_number < 9000:
            line = f"{line_number}"
            try:
                client.append_memo("s1", f"NOTES-{number}.md", f"{line}\n", idempotency_key=f"{number}-{line}")
            except SandboxdError:
                is_over.wait(0.01)
                continue  # the same line again with the same key is stored once
            acknowledged.append(line)
            line_number += 1


@pytest.mark.parametrize("client", [True], indirect=True)
def test_a_queued_write_that_the_store_permanently_rejects_is_listed_and_blocks_nothing(
    client: Client, stopping: RunningDaemon, stopped: Path
) -> None:
    """The store's limit is lower than the daemon assumes, so only delivery shows that it rejects the write."""
    stopped.touch()
    after = newest_event(client)
    assert client.write_memo("s1", "NOTES.md", "x" * 200_000).queued
    assert client.append_memo("s1", "TODO.md", "small\n").queued
    stopped.unlink()
    told = next(event for event in client.events(after=after) if event.fields.get("what") == "refused")
    assert (told.kind, told.fields["session"], told.fields["name"]) == ("mirror", "s1", "NOTES.md")
    (refused,) = client.list_refused_writes("s1")
    assert (refused.path, refused.size) == (NOTES, 200_000)
    assert refused.why.startswith("cannot")
    while inside(client, "s1", NOTES) != "before\n":
        pass  # the mirror returns to the store's text; the test's time limit bounds this
    wait_in_sync(client, "s1")
    assert inside(client, "s1", "/workspace/memo/session/TODO.md") == "small\n"
    stopping.kill()
    stopping.start(outbox=True)
    with stopping.client() as again:
        assert again.list_refused_writes("s1") == [refused]
        assert again.read_memo("s1", "NOTES.md").text == "before\n"
