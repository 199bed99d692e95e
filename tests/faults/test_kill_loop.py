"""kill -9 at random moments under mixed load: every client's own history holds after every restart.

Nothing acknowledged is lost (I1), a failed write is absent or whole (I2), nothing is left over (I5), a session has one
container (I6), no edit is overwritten (I13), a command with an idempotency key runs at most once.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from memo.errors import Absent
from sandboxd.client import Client, SandboxView
from sandboxd.errors import NotFound, SandboxdError
from tests.faults.history import DaemonDied, History
from tests.faults.test_memory_killed import assert_nothing_half_made, inside, wait_in_sync
from tests.long_runs import scaled
from tests.running import RunningDaemon, docker

pytestmark = [pytest.mark.engine]

KILLS = {"docker": scaled(5, 200), "bubblewrap": scaled(3, 100)}
HEAL_S = 30
"""I5: how long a daemon may take after its start to repair what a kill left."""
LASTING = ("alpha", "beta")
"""Sessions whose sandboxes survive all kills."""
RUNS = "/workspace/runs"
"""The log to which every command adds its key."""
ID = re.compile(r"[0-9a-f]{16}")

Work = Callable[[Client, History, random.Random, str], None]


@pytest.fixture(params=sorted(KILLS))
def daemon(request: pytest.FixtureRequest, engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    if request.param == "docker":
        running = RunningDaemon(image=agent_image)
    elif os.geteuid() != 0 or shutil.which("bwrap") is None:
        pytest.skip("needs root and bwrap")
    else:
        running = RunningDaemon(engine="bubblewrap")
    try:
        yield running
    finally:
        running.stop()


def overwrite_document(client: Client, history: History, chance: random.Random, name: str) -> None:
    session = chance.choice(LASTING)
    text = f"{name} {chance.getrandbits(64)}\n" * chance.randint(1, 200)
    with history.overwriting(("memo", session, f"{name}.md"), text):
        client.write_memo(session, f"{name}.md", text)


def append_line(client: Client, history: History, chance: random.Random, name: str) -> None:
    session, line = chance.choice(LASTING), f"{name}-{chance.getrandbits(64)}"
    document = lines_document(history.kills)
    with history.appending((session, document), line):
        key = line if chance.random() < 0.5 else None
        client.append_memo(session, document, f"{line}\n", idempotency_key=key)


def write_file(client: Client, history: History, chance: random.Random, name: str) -> None:
    session, path = chance.choice(LASTING), f"/workspace/{name}-{chance.randrange(3)}"
    text = f"{chance.getrandbits(64)} " * chance.randint(1, 20_000)
    with history.overwriting(("file", session, path), text):
        client.write_file(session, path, text)


def run_command(client: Client, history: History, chance: random.Random, name: str) -> None:
    session, key = chance.choice(LASTING), f"{name}-{chance.getrandbits(64)}"
    run_once(client, history, session, key)


def come_and_go(client: Client, history: History, chance: random.Random, name: str) -> None:
    session = f"brief-{name}-{chance.randrange(2)}"
    with history.moving(session) as now_has:
        now_has(client.ensure_sandbox(session, user="ada").container)
    if chance.random() < 0.7:
        with history.moving(session) as now_has:
            client.destroy_sandbox(session)
            now_has(None)


def lines_document(kills: int) -> str:
    """Return the name of the document to append lines to; it changes from time to time, so that each stays small."""
    return f"LINES-{kills // 2}.md"


WORKERS: dict[str, Work] = {
    "writer": overwrite_document,
    "appender-1": append_line,
    "appender-2": append_line,
    "filer": write_file,
    "runner-1": run_command,
    "runner-2": run_command,
    "mover-1": come_and_go,
    "mover-2": come_and_go,
}


def run_once(client: Client, history: History, session: str, key: str) -> None:
    with history.running(session, key):
        client.exec(session, f"echo {key} >> {RUNS}", idempotency_key=key)


def work_until_killed(daemon: RunningDaemon, history: History, seed: str, name: str, work: Work) -> None:
    chance = random.Random(seed)
    try:
        with daemon.client() as client:
            while True:
                work(client, history, chance, name)
    except DaemonDied:
        return
    except Exception as error:  # noqa: BLE001  # a thread cannot fail a test
        history.surprises.append(f"{name}: {error!r}")


def kill_under_load(daemon: RunningDaemon, history: History, seed: str) -> None:
    chance = random.Random(seed)
    threads = [
        threading.Thread(target=work_until_killed, args=(daemon, history, f"{seed} {name}", name, work))
        for name, work in WORKERS.items()
    ]
    for thread in threads:
        thread.start()
    time.sleep(chance.uniform(0.05, 1.5))
    daemon.kill()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a client still waits for a daemon that was killed"
    if chance.random() < 0.3:  # killed again, in the middle of the start
        daemon.launch()
        time.sleep(chance.uniform(0.2, 1.2))
        daemon.kill()


def check(daemon: RunningDaemon, history: History) -> None:
    assert history.surprises == []
    with daemon.client() as client:
        wait_settled(client)
        wrong: dict[object, str | None] = {
            **{place: value.settle(read(client, *place)) for place, value in history.values.items()},
            **{
                (session, name): lines.settle((read(client, "memo", session, name) or "").splitlines())
                for (session, name), lines in history.lines.items()
            },
            **{
                session: commands.check(client.read_file(session, RUNS).decode().splitlines())
                for session, commands in history.commands.items()
            },
            **{
                session: presence.settle(container_of(client, session))
                for session, presence in history.presences.items()
            },
        }
        assert {place: problem for place, problem in wrong.items() if problem is not None} == {}
        assert_nothing_half_made(daemon)
        wait_nothing_left_over(daemon, client)
        for session in LASTING:
            wait_in_sync(client, session)
        for session, name in list(history.lines)[-len(LASTING) :]:
            text = read(client, "memo", session, name)
            if text is not None:  # the kill may come before its first append
                assert inside(client, session, f"/workspace/memo/session/{name}") == text
        for session, commands in history.commands.items():
            for key in sorted(commands.doubtful):
                run_once(client, history, session, key)
            assert commands.check(client.read_file(session, RUNS).decode().splitlines()) is None
    assert history.surprises == []


def read(client: Client, kind: str, session: str, name: str) -> str | None:
    try:
        return client.read_memo(session, name).text if kind == "memo" else client.read_file(session, name).decode()
    except (Absent, NotFound):
        return None


def container_of(client: Client, session: str) -> str | None:
    try:
        return client.get_sandbox(session).container
    except NotFound:
        return None


def wait_settled(client: Client) -> None:
    """Wait until no sandbox has a move under way and the permanent ones accept calls."""
    deadline = time.monotonic() + HEAL_S
    while True:
        states = {sandbox.session: sandbox.state for sandbox in client.list_sandboxes()}
        if set(states.values()) <= {"ready"} and all(is_answering(client, session) for session in states):
            assert set(LASTING) <= states.keys()
            return
        assert time.monotonic() < deadline, f"still not at rest: {states}"
        time.sleep(0.05)


def is_answering(client: Client, session: str) -> bool:
    try:
        return client.exec(session, ["true"]).exit_code == 0
    except SandboxdError as error:
        if not error.retryable:
            raise
        return False


def wait_nothing_left_over(daemon: RunningDaemon, client: Client) -> None:
    deadline = time.monotonic() + HEAL_S
    while left := left_over(daemon, client.list_sandboxes()):
        assert time.monotonic() < deadline, f"left over: {left}"
        time.sleep(0.1)


def left_over(daemon: RunningDaemon, sandboxes: list[SandboxView]) -> list[str]:
    """Return containers, directories, mounts and processes of this daemon that belong to no sandbox."""
    if daemon.settings["engine"] == "docker":
        labelled = docker(
            "ps", "-a", "--no-trunc", "--format", '{{.ID}} {{.Label "sandboxd.sandbox"}}',
            "--filter", f"label=sandboxd.instance={daemon.instance()}",
        )  # fmt: skip
        id_by_container = dict(line.split() for line in labelled.splitlines())
    else:
        id_by_container = {str(sandbox.container): str(sandbox.container).split("-")[1] for sandbox in sandboxes}
    ids = {id_by_container.pop(str(sandbox.container), None) for sandbox in sandboxes}
    places = [*daemon.sandbox_files(), *daemon.mounts(), *processes_inside(daemon)]
    strays = [place for place in places if not ids & set(ID.findall(place))]
    return [*id_by_container, *strays]


def processes_inside(daemon: RunningDaemon) -> list[str]:
    """Return processes in containers of this daemon, each with the sandbox directory that it has mounted."""
    own, runs = os.readlink("/proc/self/ns/mnt"), f"{daemon.data.parent.name}/data/run/"
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/ns/mnt") != own:
                with open(f"/proc/{pid}/mountinfo") as lines:
                    found += [f"process {pid} of {line.split()[3]}" for line in lines if runs in line]
    return found


@pytest.mark.timeout(180 + 30 * max(KILLS.values()))
def test_random_kills_under_mixed_load_lose_nothing_and_leave_nothing(daemon: RunningDaemon) -> None:
    seed = os.environ.get("SANDBOXD_TEST_SEED") or str(random.SystemRandom().randrange(2**32))
    print(f"SANDBOXD_TEST_SEED={seed}")  # shown when the test fails
    history = History()
    daemon.start()
    with daemon.client() as client:
        for session in LASTING:
            client.ensure_sandbox(session, user="ada")
            client.exec(session, f"touch {RUNS}")
    kills = KILLS[str(daemon.settings["engine"])]
    for number in range(kills):
        kill_under_load(daemon, history, f"{seed} {number}")
        history.kills += 1
        daemon.start()
        check(daemon, history)
    print(f"{kills} rounds, {history.acknowledged} acknowledged")
    assert history.acknowledged > kills
    with daemon.client() as client:
        for sandbox in client.list_sandboxes():
            client.destroy_sandbox(sandbox.session)
    assert (daemon.containers(), daemon.sandbox_files(), daemon.mounts()) == ([], [], [])
    assert processes_inside(daemon) == []
