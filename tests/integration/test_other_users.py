"""I7: another user of the host cannot access anything of a sandbox, by any path that root can name.

Root lists every file, directory, socket and mount below the data directory and the cache; the other user tries each.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxd.client import Client
from tests.ordinary_user import public_python
from tests.running import RunningDaemon

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("bwrap") is None, reason="needs root and bwrap"),
]

AGENT_UID = 10001
DAEMON_UID = 10002
OTHER_UID = 10003
MOST_BYTES = 64 * 1024 * 1024

PROBE = """
import json, os, socket, sys

asked = json.load(sys.stdin)
reached = []


def attempt(what, path, action):
    try:
        found = action()
    except OSError:
        return
    reached.append([what, path, asked["canary"] in repr(found)])


def read(path):
    with open(path, "rb") as file:
        return file.read(asked["most"])


def some(found):
    if not found:  # a process that has just ended lets everyone open its files, and they are empty
        raise OSError
    return found


def knock(path):
    with socket.socket(socket.AF_UNIX) as one:
        return one.connect(path)


for path in asked["paths"]:
    attempt("list", path, lambda: os.listdir(path))
    attempt("read", path, lambda: read(path))
    attempt("connect", path, lambda: knock(path))
for pid in asked["pids"]:
    for name in ("environ", "mem", "maps", "io"):
        attempt("read", f"/proc/{pid}/{name}", lambda: some(read(f"/proc/{pid}/{name}")))
    for name in ("root", "cwd", "fd", "map_files"):
        attempt("list", f"/proc/{pid}/{name}", lambda: os.listdir(f"/proc/{pid}/{name}/"))
for top in asked["tops"]:
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                try:
                    text = read(path)
                except OSError:
                    continue
                if asked["canary"].encode() in text:
                    reached.append(["walk", path, True])
print(json.dumps(reached))
"""


@pytest.fixture(scope="module", params=["docker as root", "bubblewrap as root", "bubblewrap as an ordinary user"])
def daemon(request: pytest.FixtureRequest) -> Iterator[RunningDaemon]:
    if request.param == "docker as root":
        request.getfixturevalue("engine_socket")
        running = RunningDaemon(image=request.getfixturevalue("agent_image"), outbox=True)
    elif request.param == "bubblewrap as root":
        running = RunningDaemon(engine="bubblewrap", outbox=True)
    else:
        running = RunningDaemon(engine="bubblewrap", outbox=True, uid=DAEMON_UID)
    try:
        yield running.start()
    finally:
        with running.client() as client:
            for sandbox in client.list_sandboxes():
                client.destroy_sandbox(sandbox.session)
        running.stop()


@pytest.fixture(scope="module")
def canary(daemon: RunningDaemon) -> str:
    """Put a secret into everything that a sandbox keeps: a file, a document, an artifact, an answer, an environment."""
    secret = f"canary-{secrets.token_hex(12)}"
    with daemon.client() as client:
        client.ensure_sandbox("s1", user="ada", env={"TOKEN": secret})
        client.write_file("s1", "/workspace/creds.txt", secret.encode())
        client.write_memo("s1", "NOTES.md", secret)
        client.write_artifact("s1", "report.txt", secret)
        answer = client.exec("s1", "cat creds.txt memo/session/NOTES.md", idempotency_key="once")
        assert answer.stdout.count(secret) == 2, "the agent itself reads both"
        client.start_process("s1", "sleep 1000")
    return secret


def _paths(daemon: RunningDaemon) -> list[str]:
    """Everything below the data directory and the cache in memory, and every mount that names either."""
    tops = [daemon.data, (daemon.data / "mirrors").resolve().parent]
    found = {str(daemon.socket)}
    for top in tops:
        for directory, _, names in os.walk(top):
            found |= {directory, *(os.path.join(directory, name) for name in names)}
    with open("/proc/self/mounts") as mounts:
        points = [line.split()[1] for line in mounts]
    found |= {point for point in points if any(point.startswith(str(top)) for top in tops)}
    return sorted(found)


def _family(pid: int) -> list[int]:
    """The daemon and every process of its containers: whatever has its children or its agents' user id."""
    found = {pid}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                status = Path("/proc", entry, "status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            if int(fields["PPid"]) in found or int(fields["Uid"].split()[0]) in (AGENT_UID, DAEMON_UID):
                found.add(int(entry))
    return sorted(found)


def _probe(daemon: RunningDaemon, canary: str, uid: int, pids: list[int]) -> list[list[object]]:
    cache = (daemon.data / "mirrors").resolve().parent
    asked = {
        "canary": canary,
        "paths": _paths(daemon),
        "pids": pids,
        "tops": [str(daemon.data), str(cache), "/dev/shm", "/run"],
        "most": MOST_BYTES,
    }
    done = subprocess.run(
        [public_python(), "-c", PROBE],
        input=json.dumps(asked),
        cwd="/",
        env={},
        user=uid,
        group=uid,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    reached: list[list[object]] = json.loads(done.stdout)
    return reached


def test_another_user_of_the_host_cannot_access_anything_of_a_sandbox(daemon: RunningDaemon, canary: str) -> None:
    paths = _paths(daemon)
    for name in ("registry.db", "idempotency.db-wal", "memo.db", "outbox.db"):
        assert f"{daemon.data}/{name}" in paths
    assert any(path.endswith("creds.txt") for path in paths), "the list holds what is to be protected"
    assert any(path.endswith("NOTES.md") for path in paths)
    pids = _family(daemon.pid)
    assert len(pids) >= 3, "the daemon, a runner and a command"
    assert _probe(daemon, canary, OTHER_UID, pids) == []
    for pid in pids:  # the one thing that every user may read
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            assert canary.encode() not in Path("/proc", str(pid), "cmdline").read_bytes()


def test_a_host_user_with_the_agents_uid_reaches_no_path(daemon: RunningDaemon, canary: str) -> None:
    if daemon.data.stat().st_uid != 0:
        pytest.skip("an ordinary user's agents are that user")
    assert _probe(daemon, canary, AGENT_UID, []) == []


def test_everything_is_private_to_the_daemon_or_open_to_the_agents_group_only(
    daemon: RunningDaemon, canary: str
) -> None:
    runner = f"{daemon.data}/runner/"  # the package's own code
    files = [path for path in map(Path, _paths(daemon)) if not str(path).startswith(runner)]
    inside = [path for path in files if "/files/" in str(path)]  # the agent's own, with the modes it chose
    open_to_others = [str(path) for path in files if path not in inside and path.lstat().st_mode & 0o007]
    assert [path for path in open_to_others if not Path(path).is_symlink()] == []
    databases = [path for path in files if ".db" in path.name]
    assert {stat.S_IMODE(path.stat().st_mode) for path in databases} == {0o600}
    assert stat.S_IMODE(daemon.data.stat().st_mode) == 0o700


def test_open_permissions_of_an_older_daemon_are_closed_at_the_next_start(engine_socket: str, agent_image: str) -> None:
    daemon = RunningDaemon(image=agent_image, cache="memory")
    try:
        with daemon.start().client() as client:
            client.ensure_sandbox("s1", user="ada")
            client.write_memo("s1", "NOTES.md", "the text")
        daemon.terminate()
        _open_as_before(daemon)
        with daemon.start().client() as client:
            assert stat.S_IMODE(daemon.data.stat().st_mode) == 0o700
            found = [Path(path) for path in _paths(daemon) if "/runner" not in path and "/files" not in path]
            # Texts in a mirror are replaced while it is taken over; the directories above them are closed at once.
            kept = [path for path in found if path.is_dir() or path.parent == daemon.data]
            open_to_others = [str(path) for path in kept if path.lstat().st_mode & 0o007 and not path.is_symlink()]
            assert [path for path in open_to_others if "/mirrors/" not in path] == []
            assert _probe(daemon, "the text", OTHER_UID, []) == []
            read = client.exec("s1", "cat memo/session/NOTES.md")
            assert (read.exit_code, read.stdout) == (0, "the text"), "its agent still reads its memory"
            _wait_written(client)
    finally:
        daemon.stop()


def _open_as_before(daemon: RunningDaemon) -> None:
    cache = (daemon.data / "mirrors").resolve().parent
    for top in (daemon.data, cache, cache / "mirrors", cache / "blobs"):
        top.chmod(0o711)
    for name in ("registry.db", "idempotency.db", "instance", "memo.db"):
        (daemon.data / name).chmod(0o644)
    for name in ("run", "engine", "workspaces"):
        (daemon.data / name).chmod(0o711)
    for home in (daemon.data / "workspaces").iterdir():
        home.chmod(0o711)
    for path in (cache / "mirrors").rglob("*"):
        os.chown(path, 0, 0)
        path.chmod(0o755 if path.is_dir() else 0o444)
    for mirror in (*(cache / "mirrors").iterdir(), *(daemon.data / "run").iterdir()):
        os.chown(mirror, 0, 0)
        mirror.chmod(0o755)


def _wait_written(client: Client) -> None:
    """What is written after the upgrade is read by a container that was started before it."""
    client.write_memo("s1", "NOTES.md", "a newer text")
    wait = "until grep -q newer memo/session/NOTES.md; do sleep 0.1; done; cat memo/session/NOTES.md"
    read = client.exec("s1", wait, timeout_s=10)
    assert read.stdout == "a newer text"
