"""Filesystem images: one template per size, and sparse copies of it.

A template gets its name once it is complete, and only a few sizes are kept. Everything here blocks.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import subprocess
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
_KEPT_TEMPLATES = 8
_TOOL_TIMEOUT_S = 60
_TOOL_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


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
            (target / "lost+found").rmdir()
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


def copy_sparse(source: Path, target: Path) -> None:
    """Copy only the written blocks; holes stay holes. The kernel shares blocks if the filesystem supports it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(source, "rb") as reader, open(os.open(target, flags, PRIVATE_FILE), "wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        writer.truncate(size)
        offset = 0
        while offset < size:
            try:
                start = os.lseek(reader.fileno(), offset, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break  # the rest is a hole
                raise
            offset = os.lseek(reader.fileno(), start, os.SEEK_HOLE)
            while start < offset:
                copied = os.copy_file_range(reader.fileno(), writer.fileno(), offset - start, start, start)
                if copied == 0:
                    raise OSError(errno.EIO, "the template shrank while it was copied")
                start += copied


def check(image: Path) -> None:
    """Repair an image that was not unmounted, for example after a crash of the host. A clean image takes a few ms."""
    run_tool("e2fsck", "-p", str(image), accepted=(0, 1, 2))


def find_tool(name: str) -> str | None:
    return shutil.which(name, path=_TOOL_PATH)


def run_tool(name: str, *arguments: str, accepted: tuple[int, ...] = (0,)) -> None:
    program = find_tool(name)
    if program is None:
        raise FileNotFoundError(errno.ENOENT, f"{name} is not installed")
    environment = {"PATH": _TOOL_PATH, "LC_ALL": "C"}
    answer = subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
    )
    if answer.returncode not in accepted:
        said = " ".join((answer.stderr or answer.stdout).split())
        number = errno.ENOSPC if "No space left" in said else errno.EIO
        raise OSError(number, f"{name} exited {answer.returncode}: {said[:300]}")
