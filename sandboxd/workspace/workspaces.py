"""The directories that containers see as /workspace, each limited in bytes and files.

Owns DATA/workspaces. On hosts with loop devices a workspace is its own filesystem, so the kernel enforces the limit;
elsewhere it is a plain directory that the watchdog measures. It never opens a path that a container can write: contents
are only mounted, frozen, copied as a whole image, unmounted, or measured and deleted without a container.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar
from weakref import WeakValueDictionary

import anyio
import structlog
from anyio import to_thread

from sandboxd.engine.protocol import Finding
from sandboxd.errors import DependencyError, HostFull, InvalidRequest, NotReady
from sandboxd.limits import Limits
from sandboxd.permissions import PRIVATE_DIRECTORY, make_private, tighten
from sandboxd.workspace import freezer, images, loop
from sandboxd.workspace.image_copy import copy_image
from sandboxd.workspace.images import CopyProgress, Templates
from sandboxd.workspace.removal import delete_tree

T = TypeVar("T")

_log = structlog.get_logger()

_LEGAL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_IMAGE, _FILES, _DRAFT = "image", "files", ".new-"
_TEMPLATES = ".templates"
_COPIES_AT_ONCE = 2
"""More would share the disk, and each workspace would be frozen for longer."""
_ADVICE_TOO_SLOW = (
    "a running sandbox is frozen for as long: hibernate it first, remove files, or raise snapshot_freeze_s"
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Workspaces:
    """Owns the root directory, which has one directory for each workspace with its image and its files."""

    def __init__(self, root: Path, *, uid: int, gid: int) -> None:
        self.kind: Literal["loop", "watchdog"] = "watchdog"
        self._root = root
        self._uid, self._gid = uid, gid
        self._why_watchdog = "not opened yet"
        self._lazily_unmounted = 0
        self._templates = Templates(root / _TEMPLATES, uid, gid)
        self._threads = anyio.CapacityLimiter(4)
        self._copies = anyio.Semaphore(_COPIES_AT_ONCE)
        self._copying: dict[str, anyio.CancelScope] = {}
        self._never_mounted: set[str] = set()
        """Workspaces that were made from a copy, which is consistent, and were never mounted."""
        self._locks: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def open(self) -> None:
        """Create the root, remove the drafts of a dead daemon, and determine what the host supports."""
        await self._run("open the workspaces", self._open)

    def _open(self) -> None:
        make_private(self._root)
        self._thaw()  # before anything else: a process that writes to a frozen workspace waits, and cannot be killed
        for entry in self._root.iterdir():
            if entry.name.startswith(_DRAFT) and not entry.is_dir():
                entry.unlink()  # a copy for a fork
            elif entry.name.startswith(_DRAFT):
                self._delete(entry)
            else:
                tighten(entry)
        self._why_watchdog = self._probe()
        self.kind = "watchdog" if self._why_watchdog else "loop"

    def _thaw(self) -> None:
        """Thaw what a daemon froze that died together with the process that should have thawed it."""
        if count := freezer.thaw_all(self._mounted()):
            _log.warning("thawed workspaces that an earlier daemon left frozen", count=count)

    def _probe(self) -> str:
        """Try every step of a create and a remove once. Return the reason if a step fails."""
        if os.geteuid() != 0:
            return "only root may mount"
        if not loop.CONTROL.exists():
            return f"there is no {loop.CONTROL}"
        for tool in ("mkfs.ext4", "e2fsck"):
            if images.find_tool(tool) is None:
                return f"{tool} is not installed"
        try:
            self._templates.clear_drafts()
            trial = self._root / f"{_DRAFT}trial"
            trial.mkdir(mode=PRIVATE_DIRECTORY)
            (trial / _FILES).mkdir(mode=PRIVATE_DIRECTORY)
            images.copy_sparse(self._templates.make(Limits().disk_mb), trial / _IMAGE)
            loop.mount_image(trial / _IMAGE, trial / _FILES)
            self._delete(trial)
        except OSError as error:
            # On a full disk a trial proves nothing. Mounted workspaces prove that this host supports it.
            if error.errno in _FULL:
                self._delete(self._root / f"{_DRAFT}trial")
                return "" if self._has_images() else f"a trial mount failed: {error.strerror}"
            return f"a trial mount failed: {error.strerror}"
        return ""

    def _has_images(self) -> bool:
        return any(self._root.glob(f"*/{_IMAGE}")) or any(self._root.glob(f"{_TEMPLATES}/*"))

    async def create(self, workspace_id: str, disk_mb: int) -> Path:
        """Return the directory to mount at /workspace. An existing workspace is mounted again with its contents.

        `temporary_of` returns what to mount at /var/tmp.
        """
        _check(workspace_id)
        if self.kind == "loop" and not self._templates.path(disk_mb).exists():
            async with self._alone(_TEMPLATES):
                await self._run("make a workspace template", self._templates.make, disk_mb)
        async with self._alone(workspace_id):
            return await self._run(f"create workspace {workspace_id}", self._create, workspace_id, disk_mb)

    def _create(self, workspace_id: str, disk_mb: int) -> Path:
        home = self._root / workspace_id
        files = home / _FILES
        is_new = not home.exists()
        if is_new:
            self._make(home, disk_mb)
        if (home / _IMAGE).exists() and not loop.is_mounted(files):
            if is_new:
                loop.mount_image(home / _IMAGE, files)
            elif workspace_id in self._never_mounted:
                loop.mount_image(home / _IMAGE, files)
                images.remove_lost_and_found(files)
            elif not loop.mount_again(home / _IMAGE, files):
                images.check(home / _IMAGE)
                loop.mount_image(home / _IMAGE, files)
                images.remove_lost_and_found(files)
        self._never_mounted.discard(workspace_id)
        images.make_temporary(files)
        return files

    async def make_from(self, workspace_id: str, source: Path, *, takes: bool = False) -> None:
        """Make a workspace from an image that `copy` made, or with `takes` of this image itself; `create` mounts it."""
        _check(workspace_id)
        home = self._root / workspace_id
        async with self._alone(workspace_id):
            await self._run(f"fill workspace {workspace_id}", self._make, home, 0, source, takes)
            self._never_mounted.add(workspace_id)

    def _make(self, home: Path, disk_mb: int, source: Path | None = None, takes: bool = False) -> None:
        draft = self._root / f"{_DRAFT}{secrets.token_hex(8)}"
        draft.mkdir(mode=PRIVATE_DIRECTORY)
        try:
            (draft / _FILES).mkdir(mode=PRIVATE_DIRECTORY)
            if source is not None and takes:
                source.rename(draft / _IMAGE)
            elif source is not None:
                images.copy_sparse(source, draft / _IMAGE, check=partial(images.check_room, draft))
            elif self.kind == "loop":
                images.copy_sparse(self._templates.make(disk_mb), draft / _IMAGE)
            else:
                images.make_memo(draft / _FILES)
                if os.geteuid() == 0:
                    os.chown(draft / _FILES, self._uid, self._gid)
            draft.rename(home)  # atomic
        except BaseException:
            self._delete(draft)
            raise

    async def allocated_bytes(self, workspace_id: str) -> int:
        """Return how much disk space a copy of the workspace takes at most; 0 for a plain directory."""
        _check(workspace_id)
        image = self._root / workspace_id / _IMAGE
        return await self._run("measure a workspace", _allocated, image)

    def staging(self) -> Path:
        """Return a path for a temporary image. The next start removes what is left there."""
        return self._root / f"{_DRAFT}{secrets.token_hex(8)}"

    async def copy(
        self, workspace_id: str, target: Path, *, freeze_s: float, progress: CopyProgress, to_keep: bool = True
    ) -> None:
        """Copy the image of a workspace to a new file, in one consistent state, or leave no file.

        One `to_keep` is also checked and written to disk, which takes longer than the copy. A mounted workspace is
        frozen meanwhile, for at most `freeze_s` seconds: its processes wait when they write.
        """
        _check(workspace_id)
        home = self._root / workspace_id
        async with self._alone(workspace_id), self._copies:
            try:
                with anyio.CancelScope() as scope:
                    self._copying[workspace_id] = scope
                    image, files = home / _IMAGE, home / _FILES
                    await copy_image(image, files, target, freeze_s=freeze_s, progress=progress, to_keep=to_keep)
            except OSError as error:
                what = f"copy workspace {workspace_id}"
                if error.errno == errno.ETIMEDOUT:
                    raise DependencyError(f"cannot {what}: {error.strerror}; {_ADVICE_TOO_SLOW}") from error
                raise _explain(what, error) from error
            finally:
                self._copying.pop(workspace_id, None)
        if scope.cancelled_caught:
            raise NotReady("cannot copy this workspace: it is being removed")

    def abandon_copy(self, workspace_id: str) -> None:
        """End the copy of a workspace that is about to be removed."""
        if (scope := self._copying.get(workspace_id)) is not None:
            scope.cancel()

    async def rest(self, workspace_id: str) -> None:
        """Unmount the workspace, so that without a container it takes only disk space. `create` mounts it again."""
        _check(workspace_id)
        async with self._alone(workspace_id):
            await self._run(f"unmount workspace {workspace_id}", self._rest, workspace_id)

    def _rest(self, workspace_id: str) -> None:
        files = self._root / workspace_id / _FILES
        try:
            if loop.is_mounted(files):
                loop.unmount(files)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise  # busy: a process on the host uses it, so it stays mounted

    async def remove(self, workspace_id: str) -> bool:
        """Unmount and delete a workspace, even one that is partly removed; return whether there was one."""
        _check(workspace_id)
        async with self._alone(workspace_id):
            return await self._run(f"remove workspace {workspace_id}", self._remove, workspace_id)

    def _remove(self, workspace_id: str) -> bool:
        home = self._root / workspace_id
        self._never_mounted.discard(workspace_id)
        self._unmount(home / _FILES)
        draft = self._root / f"{_DRAFT}{secrets.token_hex(8)}"
        try:
            home.rename(draft)  # first, so that a partly removed workspace is never found under its name
        except FileNotFoundError:
            return False
        self._delete(draft)
        return True

    def _delete(self, home: Path) -> None:
        self._unmount(home / _FILES)
        delete_tree(home)

    def _unmount(self, files: Path) -> None:
        while loop.is_mounted(files):
            try:
                loop.unmount(files)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                # A process on the host uses it. The name is removed now, and the device when that process is done.
                loop.unmount(files, lazily=True)
                self._lazily_unmounted += 1

    async def drop_templates(self) -> None:
        """Free the disk space of the templates. The next create makes the template that it needs."""
        async with self._alone(_TEMPLATES):
            await self._run("drop the workspace templates", self._templates.drop)

    async def find(self) -> set[str]:
        """Return every id that is on disk or mounted below the root."""
        return await self._run("list the workspaces", self._find)

    def _find(self) -> set[str]:
        found = {name for name in os.listdir(self._root) if _LEGAL_ID.fullmatch(name)}
        return found | {point.parent.name for point in self._mounted()}

    def _mounted(self) -> set[Path]:
        root = self._root.resolve()
        points = loop.parse_mount_points(os.fsdecode(Path("/proc/self/mountinfo").read_bytes()))
        return {
            point
            for point in points
            if point.name == _FILES and point.parent.parent == root and _LEGAL_ID.fullmatch(point.parent.name)
        }

    async def sizes(self, in_use: Collection[str]) -> dict[str, int]:
        """Return the disk space that workspaces take, in bytes, by their id.

        A plain directory is measured only if it is not in use, because its container could mislead the daemon.
        """
        return await self._run("measure the workspaces", self._sizes, frozenset(in_use))

    def _sizes(self, in_use: frozenset[str]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name in filter(_LEGAL_ID.fullmatch, os.listdir(self._root)):
            home = self._root / name
            try:
                sizes[name] = images.allocated_bytes(home / _IMAGE)
            except FileNotFoundError:
                if name not in in_use:
                    sizes[name] = _tree_size(home)
        return sizes

    def diagnose(self) -> list[Finding]:
        if self.kind == "loop":
            detail = "each is its own filesystem: bytes and files are limited; their limits may add up to more"
            found = [Finding("workspaces", "ok", f"{detail} than the disk has")]
        else:
            found = [
                Finding(
                    "workspaces",
                    "weak",
                    f"plain directories, because {self._why_watchdog}; exceeding the limit is detected, not prevented",
                    "run the daemon as root with loop devices and e2fsprogs",
                )
            ]
        if self._lazily_unmounted:
            detail = f"{self._lazily_unmounted} were in use on the host when they were removed"
            found.append(Finding("workspace mounts", "weak", detail, "leave DATA/workspaces alone"))
        return found

    @asynccontextmanager
    async def _alone(self, key: str) -> AsyncIterator[None]:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = anyio.Lock()
        async with lock:
            yield

    async def _run(self, what: str, function: Callable[..., T], *arguments: object) -> T:
        try:
            return await to_thread.run_sync(function, *arguments, limiter=self._threads)
        except OSError as error:
            raise _explain(what, error) from error


def _explain(what: str, error: OSError) -> DependencyError:
    kind = HostFull if error.errno in _FULL else DependencyError
    return kind(f"cannot {what}: {error.strerror}")


def _allocated(image: Path) -> int:
    return images.allocated_bytes(image) if image.exists() else 0


def temporary_of(files: Path) -> Path | None:
    """Return the directory to mount at /var/tmp for these files at /workspace; None if there was no room for it."""
    path = files / images.MEMO / images.TEMPORARY
    return path if path.is_dir() else None


def _tree_size(top: Path) -> int:
    """Return the disk space of a directory. What is too deep to reach, or removed meanwhile, does not count."""
    size, open_ends = 0, [os.fspath(top)]
    while open_ends:
        with contextlib.suppress(OSError), os.scandir(open_ends.pop()) as entries:
            for entry in entries:
                size += entry.stat(follow_symlinks=False).st_blocks * images.BLOCK_BYTES
                if entry.is_dir(follow_symlinks=False):
                    open_ends.append(entry.path)
    return size


def _check(workspace_id: str) -> None:
    if _LEGAL_ID.fullmatch(workspace_id) is None:
        raise InvalidRequest("cannot use this workspace id: it must be a plain name")
