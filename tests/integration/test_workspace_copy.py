"""Copies of mounted workspaces: consistent while writers run, thawed whatever fails, and nothing left over."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import anyio.abc
import pytest

from sandboxd import failpoints
from sandboxd.errors import DependencyError, HostFull
from sandboxd.workspace import CopyProgress, Workspaces, freeze_guard, freezer, loop
from sandboxd.workspace.freezer import Freeze
from tests.running import unmount_below

pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0 or not loop.CONTROL.exists(), reason="needs root and loop devices"),
]

WAIT_S = 60
DISK_MB = 256


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


@pytest.fixture
async def workspaces(tmp_path: Path) -> AsyncIterator[Workspaces]:
    opened = Workspaces(tmp_path / "workspaces", uid=10001, gid=10001)
    await opened.open()
    assert opened.kind == "loop", opened.diagnose()
    try:
        yield opened
    finally:
        for workspace_id in await opened.find():
            await opened.remove(workspace_id)
        unmount_below(tmp_path)


def is_frozen(files: Path) -> bool:
    """Return whether a write waits. A second freeze of a frozen filesystem is refused."""
    directory = os.open(files, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(directory, freeze_guard.FIFREEZE, 0)
    except OSError:
        return True
    else:
        freeze_guard.thaw(directory)
        return False
    finally:
        os.close(directory)


def fsck(image: Path) -> int:
    return subprocess.run(["e2fsck", "-fn", image], capture_output=True, timeout=WAIT_S).returncode


async def copy(workspaces: Workspaces, target: Path, workspace_id: str = "w1", freeze_s: float = 30) -> CopyProgress:
    progress = CopyProgress()
    await workspaces.copy(workspace_id, target, freeze_s=freeze_s, progress=progress)
    return progress


@contextlib.contextmanager
def writing(files: Path) -> Iterator[Path]:
    """Write rows to a database in the workspace until the block ends."""
    path = files / "rows.db"
    stopped, begun = threading.Event(), threading.Event()

    def write() -> None:
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA synchronous = OFF")  # order and torn writes are then up to the filesystem alone
            db.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, filler BLOB)")
            number = 0
            while not stopped.is_set():
                with db:
                    db.executemany(
                        "INSERT INTO rows VALUES (?, ?)", [(number + i, os.urandom(3000)) for i in range(20)]
                    )
                    db.execute("DELETE FROM rows WHERE number < ?", (number - 400,))
                number += 20
                if number > 200:
                    begun.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        assert begun.wait(WAIT_S)
        yield path
    finally:
        stopped.set()
        thread.join(WAIT_S)


async def test_a_copy_has_what_was_written_before_it_and_nothing_later(workspaces: Workspaces, tmp_path: Path) -> None:
    files = await workspaces.create("w1", DISK_MB)
    (files / "before").write_text("kept")  # not synced: it is still in the page cache
    progress = await copy(workspaces, tmp_path / "copy")
    (files / "after").write_text("not in the copy")
    assert fsck(tmp_path / "copy") == 0
    assert progress.copied_bytes == progress.total_bytes > 0
    await workspaces.make_from("w2", tmp_path / "copy")
    copied = await workspaces.create("w2", DISK_MB)
    assert (copied / "before").read_text() == "kept"
    assert sorted(os.listdir(copied)) == ["before", "memo"]
    (copied / "before").write_text("changed")
    assert (files / "before").read_text() == "kept"


async def test_a_copy_under_a_writer_is_clean_and_its_database_is_sound(workspaces: Workspaces, tmp_path: Path) -> None:
    files = await workspaces.create("w1", DISK_MB)
    with writing(files):
        for number in range(5):
            target = tmp_path / f"copy{number}"
            await copy(workspaces, target)
            assert fsck(target) == 0
            await workspaces.make_from(f"c{number}", target)
            copied = await workspaces.create(f"c{number}", DISK_MB)
            with contextlib.closing(sqlite3.connect(copied / "rows.db")) as db:
                assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                assert db.execute("SELECT count(*) FROM rows").fetchone()[0] >= 200
    assert not is_frozen(files)


async def test_a_copy_frees_what_was_deleted_but_open(workspaces: Workspaces, tmp_path: Path) -> None:
    files = await workspaces.create("w1", DISK_MB)
    with open(files / "open", "wb") as deleted:
        deleted.write(bytes(64 * 1024 * 1024))
        deleted.flush()
        (files / "open").unlink()
        await copy(workspaces, tmp_path / "copy")
    await workspaces.make_from("w2", tmp_path / "copy")
    copied = await workspaces.create("w2", DISK_MB)
    status = os.statvfs(copied)
    assert (status.f_blocks - status.f_bfree) * status.f_frsize < 8 * 1024 * 1024


async def test_a_fast_copy_is_consistent_and_repaired_at_its_second_mount(
    workspaces: Workspaces, tmp_path: Path
) -> None:
    files = await workspaces.create("w1", DISK_MB)
    with writing(files) as database, open(files / "open", "wb") as deleted:
        deleted.write(bytes(64 * 1024 * 1024))
        deleted.flush()
        (files / "open").unlink()
        await workspaces.copy("w1", tmp_path / "copy", freeze_s=30, progress=CopyProgress(), to_keep=False)
    await workspaces.make_from("w2", tmp_path / "copy", takes=True)
    copied = await workspaces.create("w2", DISK_MB)
    for _ in range(2):
        assert {"memo", database.name} <= set(os.listdir(copied)) <= {"memo", database.name, f"{database.name}-journal"}
        with contextlib.closing(sqlite3.connect(copied / database.name)) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        (copied / "written").write_bytes(os.urandom(1024 * 1024))
        (copied / "written").unlink()
        await workspaces.rest("w2")
        copied = await workspaces.create("w2", DISK_MB)
    status = os.statvfs(copied)
    assert (status.f_blocks - status.f_bfree) * status.f_frsize < 32 * 1024 * 1024


async def test_a_workspace_at_rest_is_copied_without_a_freeze(workspaces: Workspaces, tmp_path: Path) -> None:
    files = await workspaces.create("w1", DISK_MB)
    (files / "file").write_text("kept")
    await workspaces.rest("w1")
    await copy(workspaces, tmp_path / "copy", freeze_s=1e-9)
    await workspaces.make_from("w2", tmp_path / "copy", takes=True)
    assert not (tmp_path / "copy").exists()
    assert (await workspaces.create("w2", DISK_MB) / "file").read_text() == "kept"


@pytest.mark.parametrize("point", ["snapshot.frozen", "snapshot.copied", "snapshot.thawed"])
async def test_a_copy_that_fails_leaves_no_file_and_nothing_frozen(
    workspaces: Workspaces, tmp_path: Path, point: str
) -> None:
    files = await workspaces.create("w1", DISK_MB)
    failpoints.arm(f"{point}=error(ENOSPC)")
    with pytest.raises(HostFull, match="No space left"):
        await copy(workspaces, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert not is_frozen(files)


async def copied_but_frozen(tasks: anyio.abc.TaskGroup, workspaces: Workspaces, target: Path, **options: float) -> None:
    """Start a copy, and wait until all of it is copied and the workspace is still frozen."""
    progress = CopyProgress()
    freeze_s = options.get("freeze_s", 30)
    tasks.start_soon(lambda: workspaces.copy("w1", target, freeze_s=freeze_s, progress=progress))
    with anyio.fail_after(WAIT_S):
        while not progress.copied_bytes or progress.copied_bytes < progress.total_bytes:
            await anyio.sleep(0.01)


async def test_a_cancelled_copy_thaws_and_leaves_no_file(workspaces: Workspaces, tmp_path: Path) -> None:
    files = await workspaces.create("w1", DISK_MB)
    failpoints.arm("snapshot.copied=delay(60000)")
    async with anyio.create_task_group() as tasks:
        await copied_but_frozen(tasks, workspaces, tmp_path / "copy")
        assert is_frozen(files)
        tasks.cancel_scope.cancel()
    assert not (tmp_path / "copy").exists()
    assert not is_frozen(files)


async def test_a_freeze_that_takes_too_long_is_thawed_meanwhile(workspaces: Workspaces, tmp_path: Path) -> None:
    files = await workspaces.create("w1", DISK_MB)
    failpoints.arm("snapshot.copied=delay(60000)")
    async with anyio.create_task_group() as tasks:
        await copied_but_frozen(tasks, workspaces, tmp_path / "copy", freeze_s=1)
        # Waits until the guard thaws, long before the failpoint ends.
        await anyio.to_thread.run_sync((files / "written").write_text, "the agent goes on")
        tasks.cancel_scope.cancel()
    assert not (tmp_path / "copy").exists()


async def test_the_deadline_of_a_freeze_is_named(workspaces: Workspaces, tmp_path: Path) -> None:
    await workspaces.create("w1", DISK_MB)
    failpoints.arm("snapshot.copied=delay(1500)")
    with pytest.raises(DependencyError, match=r"longer than 1 s"):
        await copy(workspaces, tmp_path / "copy", freeze_s=1)
    assert not (tmp_path / "copy").exists()


async def test_a_thaw_from_outside_makes_the_copy_fail(workspaces: Workspaces, tmp_path: Path) -> None:
    files = await workspaces.create("w1", DISK_MB)
    freeze = Freeze(files, 30)
    freeze.begin()
    assert freezer.thaw_all([files]) == 1
    with pytest.raises(OSError, match="thawed from outside"):
        freeze.end()
    freeze.end()  # twice is harmless


async def test_a_freeze_of_another_program_is_refused_and_left_alone(workspaces: Workspaces, tmp_path: Path) -> None:
    files = await workspaces.create("w1", DISK_MB)
    directory = os.open(files, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.ioctl(directory, freeze_guard.FIFREEZE, 0)
    try:
        with pytest.raises(DependencyError, match="busy"):
            await copy(workspaces, tmp_path / "copy")
        assert is_frozen(files)
    finally:
        assert freeze_guard.thaw(directory)
        os.close(directory)


async def test_a_killed_daemon_leaves_nothing_frozen(workspaces: Workspaces) -> None:
    files = await workspaces.create("w1", DISK_MB)
    program = (
        "import sys, time; from pathlib import Path; from sandboxd.workspace.freezer import Freeze; "
        "f = Freeze(Path(sys.argv[1]), 600); f.begin(); print('frozen', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program, files], stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"frozen\n"
        assert is_frozen(files)
        daemon.send_signal(signal.SIGKILL)
    with anyio.fail_after(WAIT_S):
        await anyio.to_thread.run_sync((files / "file").write_text, "the agent goes on")


async def test_a_stopped_daemon_does_not_take_the_guard_with_it(workspaces: Workspaces) -> None:
    files = await workspaces.create("w1", DISK_MB)
    freeze = Freeze(files, 600)
    freeze.begin()
    (guard,) = [pid for pid in map(int, _children()) if b"freeze_guard" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(guard, signal.SIGTERM)  # as a service manager does with every process of a service
    assert is_frozen(files)
    freeze.end()
    assert not is_frozen(files)


def _children() -> list[str]:
    return [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


async def test_the_next_start_thaws_what_a_daemon_and_its_guard_left_frozen(workspaces: Workspaces) -> None:
    files = await workspaces.create("w1", DISK_MB)
    directory = os.open(files, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.ioctl(directory, freeze_guard.FIFREEZE, 0)
    os.close(directory)
    await workspaces.open()
    assert not is_frozen(files)


async def test_copies_of_one_workspace_take_turns(workspaces: Workspaces, tmp_path: Path) -> None:
    files = await workspaces.create("w1", DISK_MB)
    (files / "file").write_bytes(os.urandom(1024 * 1024))
    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(copy, workspaces, tmp_path / f"copy{number}")
    assert [fsck(tmp_path / f"copy{number}") for number in range(4)] == [0, 0, 0, 0]
    assert not is_frozen(files)


async def test_a_removal_waits_for_the_copy(workspaces: Workspaces, tmp_path: Path) -> None:
    await workspaces.create("w1", DISK_MB)
    failpoints.arm("snapshot.copied=delay(300)")
    async with anyio.create_task_group() as tasks:
        await copied_but_frozen(tasks, workspaces, tmp_path / "copy")
        assert await workspaces.remove("w1")
    assert fsck(tmp_path / "copy") == 0


async def test_a_disk_that_fills_up_during_a_copy_gets_its_room_back(workspaces: Workspaces, tmp_path: Path) -> None:
    files = await workspaces.create("w1", DISK_MB)
    (files / "file").write_bytes(os.urandom(64 * 1024 * 1024))
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", small], check=True)
    try:
        with pytest.raises(HostFull):
            await copy(workspaces, small / "copy")
        assert os.listdir(small) == []
        assert os.statvfs(small).f_bfree == os.statvfs(small).f_blocks
    finally:
        subprocess.run(["umount", small], check=True)
    assert not is_frozen(files)
