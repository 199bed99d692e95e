"""Consolidation in real daemons: live sandboxes show the page, and two daemons share the work without repeating it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import aiohttp
import anyio
import pytest

import memo
from memo.errors import Unsupported
from memo.ids import UserRef
from memo.leases import Lease
from sandboxd.client import Client, Event
from tests.integration.held_summariser import HeldSummariser
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

PAGE = "/workspace/memo/user/USER.md"
LIMITS = {"memory_mb": 128, "pids": 64, "disk_mb": 64}
USERS = [UserRef.of(f"tenant{number % 3}", f"user{number}") for number in range(50)]
TENANTS = sorted({str(user.tenant) for user in USERS})
HANG_GUARD_S = 100
SOON = {"consolidation__idle_s": 0, "consolidation__scan_s": 0.3}


@pytest.fixture
def start(engine_socket: str, agent_image: str) -> Iterator[Callable[..., RunningDaemon]]:
    with ExitStack() as stack:

        def make(**settings: Any) -> RunningDaemon:
            running = RunningDaemon(image=agent_image, **settings)
            stack.callback(running.stop)
            return running.start()

        yield make


@pytest.fixture
def held() -> Iterator[Callable[..., HeldSummariser]]:
    with ExitStack() as stack:

        def make(*tasks: str) -> HeldSummariser:
            summariser = HeldSummariser(*tasks)
            stack.callback(summariser.close)
            return summariser

        yield make


@contextmanager
def sandboxes(client: Client, user: str, count: int) -> Iterator[list[str]]:
    names = [f"{user}-{number}" for number in range(count)]
    with ExitStack() as stack:
        for name in names:
            client.ensure_sandbox(name, user, limits=LIMITS)
            stack.callback(client.destroy_sandbox, name)
        yield names


def say(client: Client, session: str, *texts: str) -> None:
    client.append_messages(session, [{"role": "user", "content": text} for text in texts])


def cat(client: Client, session: str) -> str:
    result = client.exec(session, ["cat", PAGE])
    return result.stdout if result.exit_code == 0 else ""


def run(daemon: RunningDaemon, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SANDBOXD_SOCKET": str(daemon.socket)}
    command = [sys.executable, "-m", "sandboxd", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=90, check=False)


def follow(client: Client, after: int = 0) -> Iterator[Event]:
    return (event for event in client.events(after=after) if event.kind == "consolidation")


def wait_for(client: Client, what: str, user: str) -> None:
    for event in follow(client):
        if (event.fields["what"], event.fields["user"]) == (what, user):
            return


def gather(client: Client, told: Queue[Event]) -> None:
    for event in follow(client):
        told.put(event)


def whom_written(event: Event) -> list[str]:
    return [f"{event.fields['tenant']}:{event.fields['user']}"] if event.fields.get("outcome") == "written" else []


async def metrics_of(daemon: RunningDaemon) -> str:
    connector = aiohttp.UnixConnector(str(daemon.socket))
    async with aiohttp.ClientSession(connector=connector) as http, http.get("http://localhost/metrics") as response:
        return await response.text()


async def talk(url: str) -> None:
    async with memo.open_store(url) as store:
        for user in USERS:
            await store.get_or_create(user.tenant, user.user, "agent", f"s-{user.user}")
            said = [{"role": "user", "content": text} for text in ("I prefer short answers.", "I like graphs.")]
            await store.append_messages(user.tenant, f"s-{user.user}", said)


def pending(client: Client) -> int:
    states = (state for tenant in TENANTS for state in client.list_consolidations(tenant=tenant))
    return sum(state.changed_sessions for state in states)


def assert_each_once(client: Client) -> None:
    states = [state for tenant in TENANTS for state in client.list_consolidations(tenant=tenant)]
    assert {(state.user, state.runs, state.failure) for state in states} == {(user.user, 1, None) for user in USERS}
    for user in USERS:
        history = client.memo_history(user.user, "USER.md", scope="user", tenant=user.tenant)
        assert [(one.revision, one.actor) for one in history] == [(1, "consolidation")]


# Specification: 001.77
def test_only_the_users_live_sandboxes_show_the_new_page(daemon: RunningDaemon, client: Client) -> None:
    ann, bob = f"ann-{secrets.token_hex(4)}", f"bob-{secrets.token_hex(4)}"
    with sandboxes(client, ann, 2) as anns, sandboxes(client, bob, 1) as bobs:
        say(client, anns[0], "I prefer short answers.")
        say(client, bobs[0], "hello")
        done = client.consolidate(ann)
        assert (done.changed, done.revision, done.sessions) == (True, 1, (anns[0],))
        for session in anns:
            assert f"- Prefers short answers <!-- from {anns[0]}#1 -->" in cat(client, session)
        assert cat(client, bobs[0]) == ""
        say(client, anns[1], "I like graphs.")
        assert run(daemon, "consolidate", "--user", ann).returncode == 0
        assert all("Likes graphs" in cat(client, session) for session in anns)
        # One command restores any revision, and bullets that it lacks stay deleted.
        assert run(daemon, "memo", "restore", "--user", ann, "USER.md", "1").returncode == 0
        assert all("Likes graphs" not in cat(client, session) for session in anns)
        say(client, anns[1], "I like maps.", "I like graphs.")
        client.consolidate(ann)
        for session in anns:
            assert "Likes maps" in cat(client, session)
            assert "graphs" not in cat(client, session)


# Specification: 001.78
def test_background_runs_wait_for_idle_users_and_reach_their_sandboxes(
    start: Callable[..., RunningDaemon],
) -> None:
    daemon = start(**SOON)
    with daemon.client() as client, sandboxes(client, "ann", 2) as anns, sandboxes(client, "bob", 1) as bobs:
        client.exec(anns[0], ["mkfifo", "/workspace/pipe"])
        serving = threading.Thread(target=client.exec, args=(anns[0], ["cat", "/workspace/pipe"]))
        serving.start()
        # The second call returns only once the first has opened the pipe, so ann is being served from here on.
        client.exec(anns[0], "exec 3>/workspace/pipe; nohup sleep 600 >/dev/null 2>&1 &")
        say(client, anns[0], "I prefer short answers.")
        say(client, bobs[0], "I like graphs.")
        wait_for(client, "finished", "bob")
        assert "Likes graphs" in cat(client, bobs[0])
        state = client.get_consolidation("ann")
        assert (state.due, state.why, state.runs, state.background) == (False, "the user is being served", 0, True)
        client.exec(anns[0], ["pkill", "sleep"])
        serving.join()
        wait_for(client, "finished", "ann")
        assert all("Prefers short answers" in cat(client, session) for session in anns)
    assert 'sandboxd_consolidation_runs_total{outcome="written"} 2.0' in anyio.run(metrics_of, daemon)


def test_two_daemons_on_one_store_consolidate_each_of_fifty_users_exactly_once(
    start: Callable[..., RunningDaemon], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/memo.db"
    soon = {"consolidation__idle_s": 2, "consolidation__scan_s": 0.3}
    daemons = [start(store=url, **soon) for _ in range(2)]
    told: Queue[Event] = Queue()
    with daemons[0].client() as client, daemons[1].client() as other:
        readers = [threading.Thread(target=gather, args=(each, told)) for each in (client, other)]
        for reader in readers:
            reader.start()
        anyio.run(talk, url)
        written: Counter[str] = Counter()
        while len(written) < len(USERS):
            written.update(whom_written(told.get(timeout=HANG_GUARD_S)))
        assert_each_once(client)
        for daemon in daemons:
            assert daemon.terminate() == 0
        for reader in readers:
            reader.join()
    while not told.empty():
        written.update(whom_written(told.get()))
    assert written == Counter(map(str, USERS))


def test_the_users_of_a_killed_daemon_are_taken_over_once_its_leases_expire(
    start: Callable[..., RunningDaemon], held: Callable[..., HeldSummariser], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/memo.db"
    anyio.run(talk, url)
    doomed_users = [f"s-user{number}" for number in (40, 41, 42, 43)]
    summariser = held(*doomed_users)
    leases = {"consolidation__lease_s": 2, "consolidation__concurrency": len(doomed_users)}
    doomed = start(store=url, **SOON, **leases, **summariser.settings())
    for task in doomed_users:
        summariser.wait_until_paused(task)
    other = start(store=url, **SOON, **leases)
    with doomed.client() as client:
        left = pending(client)
        assert len(doomed_users) <= left < len(USERS), "it was killed in the middle"
        assert client.get_consolidation("user40", tenant="tenant1").held_by is not None
    doomed.kill()
    with other.client() as client:
        for event in follow(client):
            if event.fields["what"] == "finished" and not pending(client):
                break
        assert_each_once(client)


def test_a_failing_user_is_shown_by_status_while_the_others_finish(start: Callable[..., RunningDaemon]) -> None:
    script = """case "$(cat)" in *'"session": "bad"'*) exit 3;; *) echo '{"facts": []}';; esac"""
    command = json.dumps(["sh", "-c", script])
    daemon = start(**SOON, consolidation__summariser="command", consolidation__command=command)
    with daemon.client() as client:
        for user in ("ann", "bob", "eve"):
            session = "bad" if user == "ann" else f"s-{user}"
            client.ensure_session(session, user)
            say(client, session, "I prefer short answers.")
        for user in ("bob", "eve"):
            wait_for(client, "finished", user)
        wait_for(client, "failed", "ann")
        shown = run(daemon, "consolidate", "--status")
        rows = {line.split("\t")[0]: line.split("\t") for line in shown.stdout.splitlines()}
        assert (rows["ann"][2], rows["ann"][3]) == ("failing", "the last try failed")
        assert rows["ann"][9] == "cannot use the summariser's answer: it exited with status 3"
        assert rows["ann"][10] > rows["bob"][5], "it says until when ann is left alone"
        assert (rows["bob"][2], rows["eve"][2]) == ("ok", "ok")


def test_a_human_edit_during_a_slow_run_survives_unchanged(
    start: Callable[..., RunningDaemon], held: Callable[..., HeldSummariser]
) -> None:
    summariser = held("profile")
    daemon = start(consolidation__enabled=False, **summariser.settings())
    own = "# About me\n\nOn Fridays I work  from home.\n\n## Mine\n\n- *Tea*, never coffee\n"
    with daemon.client() as client, sandboxes(client, "ann", 1) as (session,):
        say(client, session, "I prefer short answers.")
        answers: list[object] = []
        slow = threading.Thread(target=lambda: answers.append(client.consolidate("ann")))
        slow.start()
        summariser.wait_until_paused("profile")
        assert run(daemon, "consolidate", "--user", "ann").returncode == 1, "another run holds the user"
        client.write_memo("ann", "USER.md", own, scope="user")
        summariser.release("profile")
        slow.join()
        page = cat(client, session)
        for line in own.splitlines():
            assert line in page.splitlines()
        assert own.removeprefix("# About me\n\n").strip() in page
        assert "Prefers short answers" in page
        assert getattr(answers[0], "revision", None) == 2


def test_a_terminated_daemon_drops_its_runs_and_their_leases(
    start: Callable[..., RunningDaemon], held: Callable[..., HeldSummariser], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/memo.db"
    summariser = held("slow")
    daemon = start(store=url, drain_s=1, consolidation__lease_s=600, **SOON, **summariser.settings())
    with daemon.client() as client:
        client.ensure_session("slow", "ann")
        say(client, "slow", "I prefer short answers.")
        summariser.wait_until_paused("slow")
    assert daemon.terminate() == 0  # I11

    async def take_over() -> None:
        async with memo.open_store(url) as store:
            assert isinstance(await store.acquire_lease(UserRef.of("default", "ann"), "next", 60), Lease)
            assert len(await store.list_pending()) == 1

    anyio.run(take_over)


# Specification: 001.2
def test_a_daemon_with_a_plain_store_starts_without_consolidation(
    start: Callable[..., RunningDaemon],
) -> None:
    daemon = start(store="python:tests.unit.test_api_consolidation:OnlyReads")
    with daemon.client() as client, pytest.raises(Unsupported, match="cannot consolidate in OnlyReads"):
        client.consolidate("ann")
    assert "consolidation is off" in daemon.log.read_text()
