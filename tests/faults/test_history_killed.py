"""The history of events: complete after kill -9, and never in the way of a call when the store or the disk fails."""

from __future__ import annotations

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import memo
from memo.errors import MemoError
from sandboxd.client import Client
from sandboxd.client.errors import DaemonUnreachable
from sandboxd.errors import SandboxdError
from tests.faults.stores import store_url
from tests.faults.test_disk_full import fill, small
from tests.faults.test_store_down import stopped, stopping
from tests.long_runs import scaled
from tests.running import RunningDaemon

__all__ = ["small", "stopped", "stopping"]  # fixtures

pytestmark = [pytest.mark.engine]

KILLS = scaled(4, 60)
HEAL_S = 60
SESSIONS = ("alpha", "beta")


class Acknowledged:
    """What a client was answered, kept outside the daemon: the truth that the history is checked against."""

    def __init__(self) -> None:
        self.commands: dict[str, list[str]] = {session: [] for session in SESSIONS}
        self.documents: dict[str, int] = dict.fromkeys(SESSIONS, 0)
        self.messages: dict[str, int] = dict.fromkeys(SESSIONS, 0)
        self.surprises: list[str] = []
        self.lock = threading.Lock()


def work(daemon: RunningDaemon, done: Acknowledged, session: str, name: str) -> None:
    """Run commands, write documents and append messages until the daemon dies."""
    try:
        with daemon.client() as client:
            for number in range(1_000_000):
                command = f"echo {name}-{number}"
                client.exec(session, command)
                with done.lock:
                    done.commands[session].append(command)
                if number % 3 == 0:
                    client.append_memo(session, "LINES.md", "x\n")
                    with done.lock:
                        done.documents[session] += 1
                if number % 4 == 0:
                    client.append_messages(session, [{"role": "user", "content": "x"}])
                    with done.lock:
                        done.messages[session] += 1
    except DaemonUnreachable:
        return
    except (SandboxdError, MemoError) as error:
        done.surprises.append(f"{name}: {error!r}")


def kill_while_working(daemon: RunningDaemon, done: Acknowledged, name: str, after_s: float) -> None:
    threads = [
        threading.Thread(target=work, args=(daemon, done, session, f"{name}-{session}-{number}"))
        for session in SESSIONS
        for number in range(2)
    ]
    for thread in threads:
        thread.start()
    time.sleep(after_s)
    daemon.kill()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def history_of(client: Client, session: str) -> list[dict[str, Any]]:
    """Return every event of a session, page by page."""
    found: list[dict[str, Any]] = []
    after: int | None = None
    while True:
        page = client.list_events(after, session=session, limit=1000)
        found += [event.model_dump(mode="json") for event in page.items]
        if page.next is None:
            return found
        after = page.next


def trace_of(url: str, session: str) -> list[dict[str, Any]]:
    async def load() -> list[dict[str, Any]]:
        async with memo.open_store(url) as store:
            envelopes: list[dict[str, Any]] = await store.load_trace_envelopes("default", session)
            return envelopes

    return anyio.run(load)


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + HEAL_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def check(client: Client, done: Acknowledged, url: str) -> None:
    for session in SESSIONS:
        events = history_of(client, session)
        ids = [event["id"] for event in events]
        assert ids == sorted(set(ids))
        counts = Counter(event["command"] for event in events if event["kind"] == "exec")
        assert [command for command in done.commands[session] if counts[command] != 1] == []
        kinds = Counter(event["kind"] for event in events)
        assert kinds["memo"] >= done.documents[session]
        assert kinds["messages"] >= done.messages[session]
        # The trace has exactly the same events, each once and in the same order.
        wait_for(
            lambda session=session, ids=ids: len(trace_of(url, session)) >= len(ids),  # type: ignore[misc]
            "the trace is not complete",
        )
        trace = trace_of(url, session)
        assert [int(envelope["id"]) for envelope in trace] == ids
        outputs = {envelope["data"]["command"]: envelope for envelope in trace if envelope["type"] == "exec"}
        for command in done.commands[session]:
            assert outputs[command]["detail"]["output"] == f"{command.removeprefix('echo ')}\n"


@pytest.mark.timeout(120 + 30 * KILLS)
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_after_kills_the_history_and_the_traces_hold_every_acknowledged_call_once(
    daemon: RunningDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")  # shown when the test fails
    chance = random.Random(seed)
    url = store_url(kind, tmp_path / "memory", monkeypatch)
    done = Acknowledged()
    daemon.start(store=url)
    with daemon.client() as client:
        for session in SESSIONS:
            client.ensure_sandbox(session, user="ada")
    for number in range(KILLS):
        kill_while_working(daemon, done, str(number), chance.uniform(0.2, 2.5))
        daemon.start(store=url)
        if chance.random() < 0.5:  # killed again while it catches up
            time.sleep(chance.uniform(0.0, 0.7))
            daemon.kill()
            daemon.start(store=url)
        assert done.surprises == []
        with daemon.client() as client:
            check(client, done, url)
    assert min(len(commands) for commands in done.commands.values()) > KILLS


def test_a_store_that_is_down_delays_traces_and_no_command(
    stopping: RunningDaemon, stopped: Path, tmp_path: Path
) -> None:
    daemon = stopping
    daemon.start()
    url = f"sqlite:///{tmp_path / 'memory'}.db"
    with daemon.client() as client:
        client.ensure_sandbox("s1", user="ada")
        stopped.touch()
        for number in range(20):
            assert client.exec("s1", f"echo {number}").exit_code == 0
        daemon.kill()
        stopped.unlink()
        daemon.start()
    with daemon.client() as client:
        ids = [event["id"] for event in history_of(client, "s1")]
        assert [e["command"] for e in history_of(client, "s1") if e["kind"] == "exec"] == [
            f"echo {number}" for number in range(20)
        ]
        wait_for(lambda: len(trace_of(url, "s1")) >= len(ids), "the trace is not complete")
    assert [int(envelope["id"]) for envelope in trace_of(url, "s1")] == ids


def figure(client: Client, name: str) -> int:
    found = re.search(rf"^{name} (\S+)$", client.metrics(), re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def test_a_full_disk_fails_no_command_and_what_is_not_kept_is_counted(small: RunningDaemon) -> None:
    small.start(limits='{"disk_mb": 8}')
    with small.client() as client:
        client.ensure_sandbox("s1", user="ada")
        client.exec("s1", "echo before")
        ballast = fill(small.data)
        for number in range(30):
            assert client.exec("s1", f"echo full {number}").exit_code == 0
        ballast.unlink()
        client.exec("s1", "echo after")

        def known() -> list[str]:
            return [event["command"] for event in history_of(client, "s1") if event["kind"] == "exec"]

        kept = known()
        assert (kept[0], kept[-1]) == ("echo before", "echo after")
        dropped = figure(client, "sandboxd_history_dropped_total")
        assert len(kept) + dropped == 32
        wait_for(lambda: figure(client, "sandboxd_history_events") >= len(kept), "events are not in the database")
        small.kill()
    small.start(limits='{"disk_mb": 8}')
    with small.client() as client:
        assert [event["command"] for event in history_of(client, "s1") if event["kind"] == "exec"] == kept
