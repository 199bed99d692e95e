"""Filesystem images: one template per size, and sparse copies of them.

A template gets its name once it is complete, and only a few sizes are kept. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandboxd.permissions import PRIVATE_DIRECTORY, PRIVATE_FILE, make_private
from sandboxd.workspace import loop
from sandboxd.workspace.limit import MIB, inode_limit

MEMO = "memo"
"""The mount point of the mirror inside a workspace."""
TEMPORARY = "tmp"
"""The directory that containers see as /var/tmp. It is below MEMO: in the workspace's volume, but hidden by the
mirror's mount."""
TEMPORARY_MODE = 0o1777
LOST_AND_FOUND = "lost+found"
_KEPT_TEMPLATES = 8
_TOOL_TIMEOUT_S = 60
_TOOL_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
_PIECE_BYTES = 16 * MIB
_ROOM_BYTES = 4 * _PIECE_BYTES
BLOCK_BYTES = 512  # the unit of st_blocks, whatever the filesystem
_FICLONE = 0x40049409
_CANNOT_SHARE = frozenset({errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV, errno.ENOSYS, errno.EPERM})


class Templates:
    """Owns the directory of templates."""

    def __init__(self, root: Path, uid: int, gid: int) -> None:
        self._root = root
        self._owner = f"{uid}:{gid}"

    def path(self, disk_mb: int) -> Path:
        return self._root / f"{disk_mb}-{self._owner.replace(':', '-')}"

    def make(self, disk_mb: int) -> Path:
        """Return the template of this size, creating it if necessary."""
        path = self.path(disk_mb)
        if path.exists():
            os.utime(path)  # the least recently used are removed first
            return path
        make_private(self._root)
        draft = self._root / f".new-{secrets.token_hex(6)}"
        draft.mkdir(mode=PRIVATE_DIRECTORY)
        try:
            self._format(draft / "image", disk_mb)
            _furnish(draft / "image", draft / "files")
            (draft / "image").rename(path)
        finally:
            shutil.rmtree(draft)
        self._prune()
        return path

    def drop(self) -> None:
        if self._root.exists():
            for entry in self._root.iterdir():
                if not entry.name.startswith("."):
                    entry.unlink()

    def clear_drafts(self) -> None:
        """Remove the drafts of a daemon that died while creating a template."""
        if not self._root.exists():
            return
        for entry in self._root.iterdir():
            if entry.name.startswith(".new-"):
                if loop.is_mounted(entry / "files"):
                    loop.unmount(entry / "files")
                shutil.rmtree(entry)

    def _format(self, image: Path, disk_mb: int) -> None:
        with open(os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE), "wb") as file:
            file.truncate(disk_mb * MIB)
        layout = ["-b", "4096", "-I", "256", "-m", "0", "-N", str(inode_limit(disk_mb))]
        # No journal: a workspace need not survive a crash of the host, and is checked before it is mounted again.
        features = ["-O", "^has_journal,^resize_inode", "-E", f"lazy_itable_init=1,nodiscard,root_owner={self._owner}"]
        run_tool("mkfs.ext4", "-q", "-F", *layout, *features, str(image))

    def _prune(self) -> None:
        entries = [entry for entry in self._root.iterdir() if not entry.name.startswith(".")]
        entries.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in entries[_KEPT_TEMPLATES:]:
            entry.unlink(missing_ok=True)


def _furnish(image: Path, target: Path) -> None:
    """Create the directories that every new workspace has."""
    target.mkdir(mode=PRIVATE_DIRECTORY)
    loop.mount_image(image, target)
    try:
        with contextlib.suppress(FileNotFoundError):
            (target / LOST_AND_FOUND).rmdir()
        target.chmod(PRIVATE_DIRECTORY)  # mkfs made it 0755; its owner is the container's user
        make_memo(target)
    finally:
        loop.unmount(target)


def make_memo(files: Path) -> None:
    """Create the mount point of the mirror, and the temporary directory below it."""
    (files / MEMO).mkdir(mode=PRIVATE_DIRECTORY)
    make_temporary(files)


def make_temporary(files: Path) -> None:
    """Create the temporary directory of a workspace without a container, unless it exists or there is no room for it.

    The name MEMO can be trusted: it is a mount point in every container, and the kernel refuses to rename those.
    """
    memo = os.open(files / MEMO, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(memo).st_uid != os.geteuid():
            raise OSError(errno.EPERM, f"{MEMO} in a workspace is not the daemon's own directory")
        with contextlib.suppress(FileExistsError):
            os.mkdir(TEMPORARY, PRIVATE_DIRECTORY, dir_fd=memo)
        os.chmod(TEMPORARY, TEMPORARY_MODE, dir_fd=memo)  # every time, because a daemon may have died just before this
    except OSError as error:
        # An older daemon's workspace that is full still starts, without its own /var/tmp.
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
    finally:
        os.close(memo)


@dataclass(slots=True)
class CopyProgress:
    """How far a copy is. The thread that copies changes it, and others read it."""

    copied_bytes: int = 0
    total_bytes: int = 0


def copy_sparse(
    source: Path, target: Path, progress: CopyProgress | None = None, check: Callable[[], None] = lambda: None
) -> None:
    """Copy an image so that it takes no more room than its data: share its blocks if the filesystem can, else copy
    the written ones and leave holes as holes. `check` is called between pieces and may raise to end the copy.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(source, "rb") as reader, open(os.open(target, flags, PRIVATE_FILE), "wb") as writer:
        progress = progress or CopyProgress()
        progress.total_bytes = allocated_bytes(reader.fileno())
        if not _share_blocks(reader.fileno(), writer.fileno()):
            _copy_data(reader.fileno(), writer.fileno(), progress, check)
        progress.copied_bytes = progress.total_bytes


def allocated_bytes(file: int | Path) -> int:
    """Return the bytes that a file takes on disk; its holes take none."""
    return os.stat(file).st_blocks * BLOCK_BYTES


def _share_blocks(reader: int, writer: int) -> bool:
    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError as error:
        if error.errno in _CANNOT_SHARE:
            return False
        raise
    return True


def _copy_data(reader: int, writer: int, progress: CopyProgress, check: Callable[[], None]) -> None:
    size = os.fstat(reader).st_size
    os.ftruncate(writer, size)
    offset = 0
    while offset < size:
        try:
            start = os.lseek(reader, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # the rest is a hole
            raise
        offset = os.lseek(reader, start, os.SEEK_HOLE)
        while start < offset:
            check()
            copied = _copy_piece(reader, writer, start, min(offset - start, _PIECE_BYTES))
            if copied == 0:
                raise OSError(errno.EIO, "the image shrank while it was copied")
            start += copied
            progress.copied_bytes += copied


def check_room(directory: Path) -> None:
    """Raise if a copy to this directory would fill its disk: running workspaces on it could no longer be written."""
    status = os.statvfs(directory)
    if status.f_bavail * status.f_frsize < _ROOM_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _copy_piece(reader: int, writer: int, start: int, count: int) -> int:
    try:
        return os.copy_file_range(reader, writer, count, start, start)
    except OSError as error:
        if error.errno not in _CANNOT_SHARE:
            raise
    os.lseek(writer, start, os.SEEK_SET)  # the two are on different filesystems
    return os.sendfile(writer, reader, start, count)


def check(image: Path) -> None:
    """Repair an image that was not unmounted, for example after a crash of the host. A clean image takes a few ms."""
    run_tool("e2fsck", "-p", str(image), accepted=(0, 1, 2))


def remove_lost_and_found(files: Path) -> None:
    """Remove the empty directory that a repair leaves in a workspace without a container. A container's user cannot
    make one that belongs to the daemon."""
    path = files / LOST_AND_FOUND
    with contextlib.suppress(FileNotFoundError):
        if path.lstat().st_uid == os.geteuid():
            with contextlib.suppress(OSError):  # not empty: it holds what the repair found
                path.rmdir()


def find_tool(name: str) -> str | None:
    return shutil.which(name, path=_TOOL_PATH)


def run_tool(name: str, *arguments: str, accepted: tuple[int, ...] = (0,)) -> None:
    program = find_tool(name)
    if program is None:
        raise FileNotFoundError(errno.ENOENT, f"{name} is not installed")
    environment = {"PATH": _TOOL_PATH, "LC_ALL": "C"}
    try:
        answer = subprocess.run(
            [program, *arguments], env=environment, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError(errno.ETIMEDOUT, f"{name} took longer than {_TOOL_TIMEOUT_S} s") from None
    if answer.returncode not in accepted:
        said = " ".join((answer.stderr or answer.stdout).split())
        number = errno.ENOSPC if "No space left" in said else errno.EIO
        raise OSError(number, f"{name} exited {answer.returncode}: {said[:300]}")
