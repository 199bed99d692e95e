"""Snapshots and forks of real sandboxes: complete, consistent while they run, and separate afterwards."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from sandboxd.client import Client, SnapshotProgress, SnapshotView
from sandboxd.errors import Conflict, InvalidRequest, SandboxNotFound, SnapshotNotFound
from tests.ordinary_user import UID
from tests.running import RunningDaemon
from tests.tour import run_step

pytestmark = pytest.mark.engine

FORKS = 20
FILL = "seq 200 | xargs -I{} sh -c 'head -c 524288 /dev/urandom > f{}'; sha256sum f* > sums"
WRITER = """
import os, sqlite3
db = sqlite3.connect("rows.db")
db.execute("PRAGMA journal_mode = WAL")
db.execute("CREATE TABLE IF NOT EXISTS rows (number INTEGER PRIMARY KEY, filler BLOB)")
number = 0
while True:
    with db:
        db.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", [(number + i, os.urandom(2000)) for i in range(20)])
        db.execute("DELETE FROM rows WHERE number < ?", (number - 1000,))
    number += 20
    open(f"small-{number % 50}", "w").write("x" * number)
    if number == 400:
        print("begun", flush=True)
"""
CHECK = """
import sqlite3
db = sqlite3.connect("rows.db")
print(db.execute("PRAGMA integrity_check").fetchone()[0], db.execute("SELECT count(*) >= 400 FROM rows").fetchone()[0])
"""


@pytest.fixture
def source(client: Client) -> Iterator[str]:
    """A running sandbox with 100 MB in 200 files."""
    client.ensure_sandbox("snap-source", user="ada")
    assert client.exec("snap-source", FILL, timeout_s=120).exit_code == 0
    yield "snap-source"
    for snapshot in client.list_snapshots("snap-source"):
        client.remove_snapshot("snap-source", snapshot.id)
    client.destroy_sandbox("snap-source", missing_ok=True)


def test_twenty_forks_differ_only_after_the_fork_point(client: Client, source: str) -> None:
    client.append_messages(source, [{"role": "user", "content": "before"}])
    client.write_memo(source, "NOTES.md", "before\n")
    made = client.fork(source, count=FORKS).items
    try:
        assert len({view.session for view in made}) == FORKS
        assert {(view.parent, view.state, view.from_pool) for view in made} == {(source, "ready", False)}
        for number, view in enumerate(made):
            done = client.exec(view.session, f"sha256sum --quiet -c sums && ls | wc -l && echo {number} > mine; : > f1")
            assert (done.exit_code, done.stdout) == (0, "202\n"), done  # 200 files, their sums and memo
            client.append_messages(view.session, [{"role": "user", "content": f"after {number}"}])
            client.write_memo(view.session, "NOTES.md", f"after {number}\n")
        client.exec(source, "echo source > mine")
        for number, view in enumerate(made):
            shown = client.exec(view.session, "cat mine memo/session/NOTES.md; stat -c %s f1")
            assert shown.stdout == f"{number}\nafter {number}\n0\n"
            contents = [message["content"] for message in client.load_messages(view.session)]
            assert contents == ["before", f"after {number}"]
        assert client.exec(source, "sha256sum --quiet -c sums; cat mine memo/session/NOTES.md").stdout == (
            "source\nbefore\n"
        )
        assert [message["content"] for message in client.load_messages(source)] == ["before"]
    finally:
        for view in made:
            client.destroy_sandbox(view.session)


def test_a_snapshot_under_a_writer_is_clean_and_its_database_is_sound(client: Client, daemon: RunningDaemon) -> None:
    client.ensure_sandbox("writer", user="ada")
    process = client.start_process("writer", ["python3", "-c", WRITER]).id
    assert client.read_process("writer", process, wait_s=60).data == b"begun\n"
    try:
        for number in range(3):
            taken = client.take_snapshot("writer")
            image = daemon.data / "snapshots" / f"{taken.id}.image"
            checked = subprocess.run(["e2fsck", "-fn", image], capture_output=True, text=True, timeout=60)
            assert checked.returncode == 0, checked.stdout
            client.ensure_sandbox(f"read-{number}", user="ada", from_snapshot=taken.id)
            assert client.exec(f"read-{number}", ["python3", "-c", CHECK]).stdout == "ok 1\n"
            client.destroy_sandbox(f"read-{number}")
            client.remove_snapshot("writer", taken.id)
        assert client.read_process("writer", process).process.running
    finally:
        client.destroy_sandbox("writer")


def test_progress_is_streamed_and_ends_with_the_snapshot(client: Client, source: str) -> None:
    *progress, taken = client.take_snapshot_stream(source, "streamed")
    assert isinstance(taken, SnapshotView)
    assert all(isinstance(item, SnapshotProgress) for item in progress)
    assert client.list_snapshots(source) == [taken]
    assert taken.size_bytes > 100_000_000
    assert client.get_snapshot(source, taken.id) == taken


def test_a_paused_and_a_hibernated_sandbox_can_be_copied(client: Client) -> None:
    client.ensure_sandbox("asleep", user="ada", resume="manual")
    client.exec("asleep", "echo kept > file")
    client.pause_sandbox("asleep")
    first = client.take_snapshot("asleep", "paused")
    client.resume_sandbox("asleep")
    client.hibernate_sandbox("asleep")
    second = client.take_snapshot("asleep", "hibernated")
    client.fork("asleep", "asleep-fork")
    assert client.get_sandbox("asleep").state == "hibernated"
    client.destroy_sandbox("asleep")
    for number, taken in enumerate((first, second)):
        client.ensure_sandbox(f"awake-{number}", user="ada", from_snapshot=taken.id)
        assert client.exec(f"awake-{number}", "cat file").stdout == "kept\n"
        client.destroy_sandbox(f"awake-{number}")
        client.remove_snapshot("asleep", taken.id)
    assert client.exec("asleep-fork", "cat file").stdout == "kept\n"
    client.destroy_sandbox("asleep-fork")


def test_a_destroyed_sandbox_ends_its_snapshot(engine_socket: str, agent_image: str) -> None:
    running = RunningDaemon(image=agent_image)
    try:
        running.start(failpoint="snapshot.frozen=delay(600000)", snapshot_freeze_s=600)
        with running.client() as client, running.client() as other:
            client.ensure_sandbox("s1", user="ada")
            stream = client.take_snapshot_stream("s1")
            assert isinstance(next(stream), SnapshotProgress)
            other.destroy_sandbox("s1")
            with pytest.raises(SandboxNotFound, match="removed meanwhile"):
                list(stream)
            assert other.list_snapshots("s1") == []
        assert list((running.data / "snapshots").iterdir()) == []
        assert running.mounts() == []
    finally:
        running.stop()


def test_another_size_or_an_unknown_snapshot_is_refused(client: Client) -> None:
    client.ensure_sandbox("sized", user="ada", limits={"disk_mb": 64})
    taken = client.take_snapshot("sized")
    try:
        with pytest.raises(InvalidRequest, match="64 MB; leave disk_mb out"):
            client.ensure_sandbox("other-size", user="ada", from_snapshot=taken.id, limits={"disk_mb": 128})
        with pytest.raises(SnapshotNotFound):
            client.ensure_sandbox("other-size", user="ada", from_snapshot="snap-0000")
        with pytest.raises(SnapshotNotFound):
            client.ensure_sandbox("other-size", user="eve", from_snapshot=taken.id)
        with pytest.raises(Conflict):
            client.ensure_sandbox("sized", user="ada", from_snapshot=taken.id)
        assert "other-size" not in {session.session for session in client.list_sessions()}
    finally:
        client.destroy_sandbox("sized")
        client.remove_snapshot("sized", taken.id)


def test_other_tenants_do_not_find_snapshots_and_cannot_fork(daemon: RunningDaemon, client: Client) -> None:
    client.ensure_sandbox("mine", user="ada")
    taken = client.take_snapshot("mine")
    try:
        with Client(daemon.socket, tenant="other") as other:
            assert other.list_snapshots("mine") == []
            for call in (other.get_snapshot, other.remove_snapshot):
                with pytest.raises(SnapshotNotFound):
                    call("mine", taken.id)
            with pytest.raises(SnapshotNotFound):
                other.ensure_sandbox("mine", user="ada", from_snapshot=taken.id)
            with pytest.raises(SandboxNotFound):
                other.fork("mine", "stolen")
            with pytest.raises(SandboxNotFound):
                other.take_snapshot("mine")
    finally:
        client.destroy_sandbox("mine")
        client.remove_snapshot("mine", taken.id)


def test_files_of_snapshots_belong_to_the_daemon_alone(daemon: RunningDaemon, client: Client) -> None:
    client.ensure_sandbox("private", user="ada")
    taken = client.take_snapshot("private")
    directory = daemon.data / "snapshots"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / f"{taken.id}.image").stat().st_mode & 0o777 == 0o600
    client.destroy_sandbox("private")
    client.remove_snapshot("private", taken.id)


def test_the_commands_take_list_use_and_remove_snapshots_and_fork(daemon: RunningDaemon) -> None:
    run_step("sandboxd create cli --user ada", daemon)
    run_step("sandboxd exec cli 'echo kept > file'", daemon)
    snapshot = run_step("sandboxd snapshot cli --name first", daemon)
    assert run_step("sandboxd snapshot ls cli", daemon).split("\t")[:2] == [snapshot, "first"]
    listed = json.loads(run_step("sandboxd snapshot ls cli --json", daemon))["items"]
    assert [one["id"] for one in listed] == [snapshot]
    assert run_step(f"sandboxd create cli-2 --user ada --from-snapshot {snapshot}", daemon) == "cli-2"
    assert run_step("sandboxd exec cli-2 'cat file'", daemon) == "kept"
    assert run_step("sandboxd fork cli cli-3 cli-4", daemon) == "cli-3\ncli-4"
    made = json.loads(run_step("sandboxd fork cli --count 1 --memory none --json", daemon))["items"]
    assert made[0]["parent"] == "cli"
    assert run_step(f"sandboxd snapshot rm cli {snapshot}", daemon) == snapshot
    run_step(f"sandboxd rm cli cli-2 cli-3 cli-4 {made[0]['session']}", daemon)


def test_a_plain_directory_is_copied_by_its_runner(agent_image: str) -> None:
    running = RunningDaemon(engine="bubblewrap", uid=UID)
    try:
        running.start()
        with running.client() as client:
            client.ensure_sandbox("s1", user="ada")
            client.exec("s1", "mkdir d; echo kept > d/file; chmod 751 d; ln -s d/file link")
            taken = client.take_snapshot("s1")
            client.ensure_sandbox("s2", user="ada", from_snapshot=taken.id)
            client.fork("s1", "s3")
            for session in ("s2", "s3"):
                assert client.exec(session, "cat link; stat -c %a d").stdout == "kept\n751\n"
            for session in ("s1", "s2", "s3"):
                client.destroy_sandbox(session)
    finally:
        running.stop()
