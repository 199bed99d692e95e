"""kill -9 while memory is written: acknowledged writes survive, and every mirror catches up with the store. (I1, I2,
I3)"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from sandboxd.client import Client
from sandboxd.client.errors import DaemonUnreachable
from sandboxd.errors import SandboxdError
from sandboxd.failpoints import POINTS
from sandboxd.idempotency import OutcomeUnknown
from tests.faults.stores import STORES, store_url, write_directly
from tests.long_runs import kill_pairs, scaled
from tests.running import RunningDaemon

pytestmark = [pytest.mark.engine]

WRITE_POINTS = sorted(point for point in POINTS if point.startswith("writeback."))
REFRESH_POINTS = sorted(point for point in POINTS if point.startswith("refresh."))
CREATE_POINTS = sorted(point for point in POINTS if point.startswith("create."))
NOTES = "/workspace/memo/session/NOTES.md"
USER = "/workspace/memo/user/USER.md"
RANDOM_KILLS = {"sqlite": scaled(5, 100), "file": scaled(2, 100), "plain": scaled(2, 100)}


@pytest.fixture(params=STORES)
def remembering(
    request: pytest.FixtureRequest, daemon: RunningDaemon, monkeypatch: pytest.MonkeyPatch
) -> RunningDaemon:
    """A daemon on each of the stores."""
    daemon.settings["store"] = store_url(request.param, daemon.data.parent / "memory", monkeypatch)
    return daemon


def inside(client: Client, session: str, path: str) -> str:
    return client.exec(session, ["cat", path]).stdout


def wait_ready(client: Client, session: str) -> None:
    """Wait until the sandbox is ready; until then its only state is starting."""
    while (state := client.get_sandbox(session).state) != "ready":
        assert state == "starting"
        time.sleep(0.01)


def wait_in_sync(client: Client, session: str) -> None:
    """Poll until every file of the mirror is the store's newest; the test's own time limit bounds this."""
    while not all(file.in_sync for file in client.get_mirror(session)):
        pass


def is_plain(daemon: RunningDaemon) -> bool:
    """Return whether the store has no revisions, no request ids and no feed."""
    return str(daemon.settings["store"]).startswith("python:")


def assert_nothing_half_made(daemon: RunningDaemon) -> None:
    """I5: no temporary file of a daemon that was killed is left where a container would see it."""
    mine = f".new-{daemon.pid:x}-"  # of a write that is under way now
    assert [path for path in (daemon.data / "mirrors").rglob(".new-*") if not path.name.startswith(mine)] == []


@pytest.mark.parametrize(("remembering", "point"), kill_pairs(STORES, WRITE_POINTS), indirect=["remembering"])
def test_a_killed_write_is_complete_or_absent(remembering: RunningDaemon, point: str) -> None:
    anyio.run(write_directly, str(remembering.settings["store"]), "s1", "session", "NOTES.md", "acknowledged")
    remembering.start(failpoint=f"{point}=kill")
    with remembering.client() as client:
        client.ensure_sandbox("s1", user="ada")
        assert inside(client, "s1", NOTES) == "acknowledged"
        with pytest.raises(DaemonUnreachable):
            client.write_memo("s1", "NOTES.md", "attempted", idempotency_key="once")
    assert remembering.wait() == -signal.SIGKILL
    remembering.start()
    assert_nothing_half_made(remembering)
    with remembering.client() as client:
        stored = client.read_memo("s1", "NOTES.md").text
        assert stored in ("acknowledged", "attempted")
        wait_in_sync(client, "s1")
        assert inside(client, "s1", NOTES) == stored
        client.write_memo("s1", "NOTES.md", "attempted", idempotency_key="once")
        assert inside(client, "s1", NOTES) == "attempted"
        if not is_plain(remembering):
            assert len(client.memo_history("s1", "NOTES.md")) == 2  # the retry was the same write


@pytest.mark.parametrize(("remembering", "point"), kill_pairs(STORES, REFRESH_POINTS), indirect=["remembering"])
def test_a_killed_refresh_is_completed_at_the_next_start(remembering: RunningDaemon, point: str) -> None:
    """A host job writes to the store directly; the daemon dies while it updates the mirror."""
    url = str(remembering.settings["store"])
    anyio.run(write_directly, url, "ada", "user", "USER.md", "old")
    remembering.start(failpoint=f"{point}=kill")
    with remembering.client() as client:
        client.ensure_sandbox("s1", user="ada")
        anyio.run(write_directly, url, "ada", "user", "USER.md", "new")
        if is_plain(remembering):  # this store has no feed, so the host job notifies the daemon
            with pytest.raises(DaemonUnreachable):
                client.refresh_user_memo_mirror_for_all_sessions("ada", "USER.md")
    assert remembering.wait() == -signal.SIGKILL
    remembering.start()
    assert_nothing_half_made(remembering)
    with remembering.client() as client:
        wait_in_sync(client, "s1")
        assert inside(client, "s1", USER) == "new"


@pytest.mark.parametrize(
    ("remembering", "point"),
    kill_pairs(STORES, ["create.snapshot", "create.mirror", "create.ready"]),
    indirect=["remembering"],
)
def test_a_killed_create_shows_the_whole_memory_when_retried(remembering: RunningDaemon, point: str) -> None:
    assert point in CREATE_POINTS
    anyio.run(write_directly, str(remembering.settings["store"]), "s1", "session", "NOTES.md", "from before")
    remembering.start(failpoint=f"{point}=kill")
    with remembering.client() as client, pytest.raises(DaemonUnreachable):
        client.ensure_sandbox("s1", user="ada")
    assert remembering.wait() == -signal.SIGKILL
    anyio.run(write_directly, str(remembering.settings["store"]), "s1", "session", "NOTES.md", "from meanwhile")
    remembering.start()
    with remembering.client() as client:
        client.ensure_sandbox("s1", user="ada")
        assert inside(client, "s1", NOTES) == "from meanwhile"
        assert_nothing_half_made(remembering)


@pytest.mark.parametrize(
    ("remembering", "point"),
    kill_pairs(STORES, ["writeback.received", "writeback.committed", "writeback.answer"]),
    indirect=["remembering"],
)
def test_a_killed_tool_call_is_applied_once_when_retried(remembering: RunningDaemon, point: str) -> None:
    """The new text holds the old one, so that a second Edit would show."""
    anyio.run(write_directly, str(remembering.settings["store"]), "s1", "session", "NOTES.md", "tea\n")
    edit = {"file_path": NOTES, "old_string": "tea", "new_string": "tea and tea"}
    remembering.start(failpoint=f"{point}=kill")
    with remembering.client() as client:
        client.ensure_sandbox("s1", user="ada")
        with pytest.raises(DaemonUnreachable):
            client.tool("s1", "Edit", edit, idempotency_key="once")
    assert remembering.wait() == -signal.SIGKILL
    remembering.start()
    with remembering.client() as client:
        wait_in_sync(client, "s1")
        if is_plain(remembering):  # the outcome is unknown, and the answer says so (I2)
            for _ in range(2):
                with pytest.raises(SandboxdError, match="may or may not") as unknown:
                    client.tool("s1", "Edit", edit, idempotency_key="once")
                assert unknown.value.code == OutcomeUnknown.code
            assert inside(client, "s1", NOTES) in ("tea\n", "tea and tea\n")
            return
        for _ in range(2):
            answer = client.tool("s1", "Edit", edit, idempotency_key="once")
            assert answer.ok, answer.content
        assert inside(client, "s1", NOTES) == client.read_memo("s1", "NOTES.md").text == "tea and tea\n"


def test_an_adopted_sandbox_answers_only_with_a_current_mirror(remembering: RunningDaemon) -> None:
    remembering.start()
    with remembering.client() as client:
        client.ensure_sandbox("s1", user="ada")
        client.write_memo("s1", "NOTES.md", "old")
        assert inside(client, "s1", NOTES) == "old"
    remembering.kill()
    anyio.run(write_directly, str(remembering.settings["store"]), "s1", "session", "NOTES.md", "new")
    remembering.start(failpoint="adopt.mirror=delay(1000)")

    def ask(question: Callable[[Client], str]) -> str:
        with remembering.client() as client:
            return question(client)

    def wait_and_look(client: Client) -> str:
        wait_ready(client, "s1")
        (file,) = (remembering.data / "mirrors").glob("*/session/NOTES.md")
        return file.read_text()

    with ThreadPoolExecutor() as threads:  # all at once, as soon as it answers
        answers = threads.map(
            ask,
            (
                lambda client: inside(client, "s1", NOTES),
                lambda client: client.tool("s1", "Read", {"file_path": NOTES}).content.split("\t")[1],
                wait_and_look,
            ),
        )
        assert list(answers) == ["new", "new", "new"]


@pytest.mark.timeout(120 + max(RANDOM_KILLS.values()) * 20)
@pytest.mark.parametrize(("remembering", "kills"), RANDOM_KILLS.items(), indirect=["remembering"])
def test_kills_at_random_moments_lose_nothing_that_was_acknowledged(remembering: RunningDaemon, kills: int) -> None:
    chance = random.Random(20261116)
    numbers = iter(range(10_000_000))
    total = 0
    remembering.start()
    with remembering.client() as client:
        client.ensure_sandbox("s1", user="ada")
        containers = remembering.containers()
    for _ in range(kills):
        acknowledged: list[str] = []
        with remembering.client() as client:
            client.write_memo("s1", "NOTES.md", "")
        writer = threading.Thread(target=_write_until_dead, args=(remembering, acknowledged, numbers))
        writer.start()
        writer.join(chance.uniform(0.05, 0.6))
        remembering.kill()
        writer.join(30)
        remembering.start()
        total += len(acknowledged)
        assert_nothing_half_made(remembering)
        with remembering.client() as client:
            stored = client.read_memo("s1", "NOTES.md").text.splitlines()
            # In order, each once, and at most one more: the one without an answer.
            assert stored[: len(acknowledged)] == acknowledged
            assert len(stored) - len(acknowledged) <= 1
            wait_in_sync(client, "s1")
            assert inside(client, "s1", NOTES).splitlines() == stored
            assert remembering.containers() == containers
    assert total > kills


def _write_until_dead(daemon: RunningDaemon, acknowledged: list[str], numbers: Iterator[int]) -> None:
    with daemon.client() as client:
        while True:
            line = f"line {next(numbers)}"
            try:
                client.append_memo("s1", "NOTES.md", f"{line}\n")
            except SandboxdError:
                return
            acknowledged.append(line)
