"""Workspaces on a real host: real loop devices, real limits, and every step at which a daemon may have died."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from sandboxd.errors import DependencyError, HostFull, InvalidRequest
from sandboxd.workspace import Workspaces, images, loop, temporary_of
from sandboxd.workspace.removal import delete_tree
from tests.ordinary_user import run_as_ordinary_user

pytestmark = [
    pytest.mark.engine,
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0 or not loop.CONTROL.exists(), reason="needs root and loop devices"),
]

UID = 10001


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "workspaces"


@pytest.fixture
async def workspaces(root: Path) -> AsyncIterator[Workspaces]:
    opened = await open_workspaces(root)
    yield opened
    for workspace_id in await opened.find():
        await opened.remove(workspace_id)
    assert mounts_below(root) == []
    assert devices_below(root) == []


async def open_workspaces(root: Path) -> Workspaces:
    opened = Workspaces(root, uid=UID, gid=UID)
    await opened.open()
    assert opened.kind == "loop", opened.diagnose()
    return opened


def run(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def stand_in(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "600"], cwd=directory)


@contextlib.contextmanager
def mounts_copied() -> Iterator[None]:
    """Hold a copy of every mount, as each container that starts does for a moment."""
    command = ["unshare", "--mount", "sh", "-c", "echo copied; read line"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"copied\n"
            yield
        finally:
            holder.kill()


def fill(directory: Path) -> None:
    """Write until the disk is full."""
    with open(directory / "filler", "wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))


def make_files_until_full(directory: Path) -> int:
    for number in range(100_000):
        try:
            (directory / f"f{number}").touch()
        except OSError as error:
            if error.errno == errno.ENOSPC:
                return number
            raise
    return 100_000


def mounts_below(root: Path) -> list[Path]:
    points = loop.parse_mount_points(Path("/proc/self/mountinfo").read_text())
    return [point for point in points if root in point.parents]


def devices_below(root: Path) -> list[str]:
    """The images below this directory that a loop device still holds."""
    held = run("losetup", "-l", "-n", "-O", "BACK-FILE").splitlines()
    return [name for name in held if name.startswith(f"{root}/")]


def write_until_full(directory: Path) -> int:
    """Write as the agent's user until the filesystem refuses, and return how much it accepted."""
    script = "import os,sys\nwith open('big','wb',buffering=0) as f:\n  try:\n    while True: f.write(bytes(1<<20))\n"
    script += "  except OSError as error: print(error.errno, os.fstat(f.fileno()).st_size)"
    done = subprocess.run(
        ["/usr/bin/python3", "-c", script],
        cwd=directory,
        user=UID,
        group=UID,
        capture_output=True,
        text=True,
        check=True,
    )
    number, size = map(int, done.stdout.split())
    assert number == errno.ENOSPC
    return size


async def test_new_workspace_belongs_to_the_agent_and_has_only_the_mirrors_mount_point(workspaces: Workspaces) -> None:
    files = await workspaces.create("one", 64)
    assert os.listdir(files) == ["memo"]
    assert (files.stat().st_uid, files.stat().st_gid, files.stat().st_mode & 0o777) == (UID, UID, 0o700)
    assert ((files / "memo").stat().st_uid, (files / "memo").stat().st_mode & 0o777) == (0, 0o700)


async def test_temporary_directory_is_below_the_mirrors_mount_point_and_open_to_the_agent(
    workspaces: Workspaces,
) -> None:
    files = await workspaces.create("one", 64)
    temporary = temporary_of(files)
    assert temporary == files / "memo" / "tmp"
    assert temporary is not None
    assert (temporary.stat().st_uid, temporary.stat().st_mode & 0o7777) == (0, 0o1777)
    assert temporary.stat().st_dev == files.stat().st_dev


async def test_workspace_that_another_mount_namespace_still_holds_comes_back_with_its_files(
    workspaces: Workspaces,
) -> None:
    files = await workspaces.create("one", 64)
    with mounts_copied():
        (files / "kept").write_text("kept")
        await workspaces.rest("one")
        assert not loop.is_mounted(files)
        assert await workspaces.create("one", 64) == files
        assert (files / "kept").read_text() == "kept"
        (files / "later").mkdir()
    await workspaces.rest("one")
    await workspaces.create("one", 64)
    assert (files / "kept").read_text() == "kept"
    assert (files / "later").is_dir()


async def test_workspace_of_an_older_daemon_gets_its_temporary_directory_and_keeps_its_files(
    workspaces: Workspaces,
) -> None:
    files = await workspaces.create("one", 64)
    (files / "kept").write_text("kept")
    (files / "memo" / "tmp").rmdir()
    await workspaces.rest("one")
    assert temporary_of(await workspaces.create("one", 64)) is not None
    (files / "memo" / "tmp").chmod(0o700)  # as left by a daemon that dies while creating it
    await workspaces.create("one", 64)
    assert (files / "memo" / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert (files / "kept").read_text() == "kept"


async def test_full_workspace_of_an_older_daemon_starts_without_a_temporary_directory(workspaces: Workspaces) -> None:
    files = await workspaces.create("one", 16)
    (files / "memo" / "tmp").rmdir()
    fill(files)
    make_files_until_full(files)
    await workspaces.rest("one")
    assert temporary_of(await workspaces.create("one", 16)) is None
    (files / "filler").unlink()
    for file in files.glob("f*"):
        file.unlink()
    assert temporary_of(await workspaces.create("one", 16)) is not None


@pytest.mark.parametrize("planted", ["link", "foreign directory"])
async def test_mount_point_that_is_not_the_daemons_own_is_refused(workspaces: Workspaces, planted: str) -> None:
    files = await workspaces.create("one", 64)
    delete_tree(files / "memo")
    if planted == "link":
        (files / "memo").symlink_to("/etc")
    else:
        (files / "memo").mkdir()
        os.chown(files / "memo", UID, UID)
    with pytest.raises(DependencyError, match="cannot create workspace one"):
        await workspaces.create("one", 64)
    assert not Path("/etc/tmp").exists()


async def test_bytes_are_limited_by_the_kernel(workspaces: Workspaces) -> None:
    files = await workspaces.create("one", 16)
    assert 12 << 20 <= write_until_full(files) <= 16 << 20


async def test_number_of_files_is_limited_by_the_kernel(workspaces: Workspaces) -> None:
    files = await workspaces.create("one", 16)
    assert 900 <= make_files_until_full(files) <= 1024


async def test_mount_allows_neither_devices_nor_set_uid_files(workspaces: Workspaces, root: Path) -> None:
    files = await workspaces.create("one", 64)
    flags = os.statvfs(files).f_flag
    assert flags & os.ST_NOSUID
    assert flags & os.ST_NODEV
    assert flags & os.ST_NOATIME


async def test_creating_again_keeps_the_contents(workspaces: Workspaces, root: Path) -> None:
    files = await workspaces.create("one", 64)
    (files / "kept").write_text("kept")
    assert await workspaces.create("one", 64) == files
    assert (files / "kept").read_text() == "kept"
    assert len(mounts_below(root)) == 1


async def test_more_workspaces_than_the_host_has_devices_can_be_created(workspaces: Workspaces, root: Path) -> None:
    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(workspaces.create, f"w{number}", 16)
    assert len(mounts_below(root)) == len(devices_below(root)) == 12


async def test_one_workspace_created_from_many_tasks_is_mounted_once(workspaces: Workspaces, root: Path) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(workspaces.create, "one", 16)
    assert len(mounts_below(root)) == 1


async def test_removing_leaves_no_mount_no_device_and_no_file(workspaces: Workspaces, root: Path) -> None:
    files = await workspaces.create("one", 64)
    (files / "file").write_text("x")
    await workspaces.remove("one")
    await workspaces.remove("one")
    assert mounts_below(root) == []
    assert devices_below(root) == []
    assert await workspaces.find() == set()
    assert os.listdir(root) == [".templates"]


async def test_image_without_a_mount_is_mounted_with_its_contents(workspaces: Workspaces, root: Path) -> None:
    files = await workspaces.create("one", 64)
    (files / "kept").write_text("kept")
    loop.unmount(files)
    again = await open_workspaces(root)
    assert await again.find() == {"one"}
    assert (await again.create("one", 64) / "kept").read_text() == "kept"


async def test_image_without_a_mount_is_removed(workspaces: Workspaces, root: Path) -> None:
    loop.unmount(await workspaces.create("one", 64))
    await workspaces.remove("one")
    assert await workspaces.find() == set()


async def test_mount_without_an_image_is_found_and_removed(workspaces: Workspaces, root: Path) -> None:
    await workspaces.create("one", 64)
    (root / "one" / "image").unlink()
    again = await open_workspaces(root)
    assert await again.find() == {"one"}
    await again.remove("one")
    assert await again.find() == set()
    assert mounts_below(root) == []


async def test_half_a_copy_is_cleared_at_the_next_start(workspaces: Workspaces, root: Path) -> None:
    draft = root / ".new-0123"
    (draft / "files").mkdir(parents=True)
    (draft / "image").write_bytes(b"half")
    again = await open_workspaces(root)
    assert await again.find() == set()
    assert not draft.exists()


async def test_removal_that_died_half_way_is_finished_at_the_next_start(workspaces: Workspaces, root: Path) -> None:
    await workspaces.create("one", 64)
    (root / "one").rename(root / ".new-4567")  # still mounted: the mount moves with its directory
    await open_workspaces(root)
    assert mounts_below(root) == []
    assert devices_below(root) == []
    assert not (root / ".new-4567").exists()


async def test_template_that_died_while_mounted_is_cleared(workspaces: Workspaces, root: Path) -> None:
    draft = root / ".templates" / ".new-89ab"
    (draft / "files").mkdir(parents=True)
    template = next(path for path in (root / ".templates").iterdir() if path.is_file())
    images.copy_sparse(template, draft / "image")
    loop.mount_image(draft / "image", draft / "files")
    await open_workspaces(root)
    assert not draft.exists()
    assert devices_below(root) == []


async def test_only_a_few_sizes_are_kept_as_templates(workspaces: Workspaces, root: Path) -> None:
    for size in range(20, 32):
        await workspaces.create("one", size)
        await workspaces.remove("one")
    assert len(os.listdir(root / ".templates")) <= 8


async def test_workspace_in_use_on_the_host_is_still_removed_and_reported(workspaces: Workspaces, root: Path) -> None:
    files = await workspaces.create("one", 64)
    with stand_in(files) as standing:
        try:
            await workspaces.remove("one")
            assert await workspaces.find() == set()
            assert mounts_below(root) == []
            assert "workspace mounts" in {finding.subject for finding in workspaces.diagnose()}
        finally:
            standing.kill()


async def test_full_host_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small)
    try:
        workspaces = await open_workspaces(small / "workspaces")
        await workspaces.create("fits", 1024)
        fill(small)
        with pytest.raises(HostFull, match="cannot create workspace"):
            await workspaces.create("one", 1024)
        assert await workspaces.find() == {"fits"}
        await workspaces.remove("fits")
        assert os.listdir(small / "workspaces") == [".templates"]
    finally:
        run("umount", small)


@pytest.mark.parametrize("bad", ["", ".", "..", "../x", "a/b", ".new-1", "-x", "a\0"])
async def test_id_that_is_not_a_plain_name_is_refused(workspaces: Workspaces, bad: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot use this workspace id"):
        await workspaces.create(bad, 64)
    with pytest.raises(InvalidRequest):
        await workspaces.remove(bad)


ORDINARY = """
import os, sys, anyio
from pathlib import Path
from sandboxd.workspace import Workspaces

async def main():
    workspaces = Workspaces(Path(sys.argv[1]), uid=10001, gid=10001)
    await workspaces.open()
    assert workspaces.kind == "watchdog"
    assert "only root may mount" in workspaces.diagnose()[0].detail
    files = await workspaces.create("one", 64)
    assert os.listdir(files) == ["memo"]
    (files / "closed" / "inner").mkdir(parents=True)
    (files / "closed" / "inner" / "file").write_text("x")
    (files / "closed" / "inner").chmod(0)
    (files / "closed").chmod(0)
    assert await workspaces.create("one", 64) == files
    assert await workspaces.find() == {"one"}
    await workspaces.remove("one")
    await workspaces.remove("one")
    assert await workspaces.find() == set()
    assert os.listdir(sys.argv[1]) == []

anyio.run(main)
print("done")
"""


def test_ordinary_user_gets_plain_directories_and_can_delete_closed_ones() -> None:
    assert run_as_ordinary_user(ORDINARY) == "done\n"
