"""The data directory: its paths and their permissions.

Names below it are opaque ids that the daemon creates, never external ids. One daemon uses the directory at a
time. Only the daemon's user may enter it (I7): engines resolve their mounts as root or as that user, so no container
needs a path through it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import py_compile
import secrets
import shutil
from pathlib import Path

from sandboxd.errors import Conflict, HostError, HostFull, HostIO
from sandboxd.history.journal import NAMES as JOURNAL_FILES
from sandboxd.permissions import PRIVATE_DIRECTORY, PRIVATE_FILE, make_private, make_shared, tighten
from sandboxd.runner.protocol import RUNNER_DIR
from sandboxd.sandboxes import cache_place
from sandboxd.sandboxes.reserve import Reserve
from sandboxd.settings import CachePlace

RESERVE = "reserve"
_PRIVATE_FILES = (
    "lock",
    "instance",
    "registry.db",
    "idempotency.db",
    "outbox.db",
    "memo.db",
    "events.db",
    *JOURNAL_FILES,
    "previews.db",
    "previews.key",
)
_SQLITE_SUFFIXES = ("", "-wal", "-shm", "-journal")


def make_data_directory(data: Path) -> None:
    """Make the directory if it is missing. Refuse one that belongs to another user."""
    try:
        data.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        owner = data.stat().st_uid
    except OSError as error:
        raise _unusable(data, error) from error
    if owner != os.geteuid():
        raise Conflict(
            f"cannot use the data directory {data}: it belongs to uid {owner}, which could read everything in it; "
            f"run `chown {os.geteuid()} {data}` or give another --data"
        )


def _unusable(data: Path, error: OSError) -> HostError:
    where = f" ({error.filename})" if error.filename and Path(error.filename) != data else ""
    kind = HostFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else HostIO
    why = os.strerror(errno.ENOTDIR) if error.errno == errno.EEXIST else error.strerror
    return kind(f"cannot use the data directory {data}: {why}{where}; correct that, or give another --data")


class Layout:
    """Owns the directory and, while held, its lock."""

    def __init__(self, data: Path, *, gid: int | None = None, cache: CachePlace = "disk", cache_bytes: int = 0) -> None:
        """`gid` is the group that containers run with; without it, the daemon's own."""
        self.data = data
        self._gid = os.getegid() if gid is None else gid
        self._cache = cache
        self._cache_bytes = cache_bytes
        self.registry = data / "registry.db"
        self.idempotency = data / "idempotency.db"
        self.workspaces = data / "workspaces"
        self.snapshots = data / "snapshots"
        self.engine_state = data / "engine"
        self.reserve = Reserve(data / RESERVE)
        self._runs = data / "run"
        self._mirrors = data / "mirrors"
        self._runners = data / "runner"
        self._lock: int | None = None

    def hold(self) -> None:
        """Make the directory and lock it, or raise with the pid of the daemon that has the lock. (I6)"""
        make_data_directory(self.data)
        try:
            for directory in (self.data, self._runs, self._runners, self.engine_state):
                make_private(directory)
            lock = os.open(self.data / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE)
        except OSError as error:
            raise _unusable(self.data, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(lock)
            raise Conflict(
                f"cannot use the data directory {self.data}: the daemon with pid {holder} uses it; "
                "stop that daemon, or give another --data"
            ) from None
        self._lock = lock
        try:
            self.reserve.spend_if_short()
            with contextlib.suppress(OSError):  # a full disk: the pid is only used in a message
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            for name in _PRIVATE_FILES:
                for suffix in _SQLITE_SUFFIXES if name.endswith(".db") else ("",):
                    tighten(self.data / f"{name}{suffix}")
            cache_place.settle(self.data, self._cache, self._cache_bytes)
        except OSError as error:
            self.release()
            raise _unusable(self.data, error) from error

    def release(self) -> None:
        if self._lock is not None:
            with contextlib.suppress(OSError):  # the next start reuses or removes what is left
                cache_place.give_back(self.data)
            os.close(self._lock)
            self._lock = None

    def instance(self) -> str:
        """The id of this data directory, a label that separates two daemons on one engine."""
        path = self.data / "instance"
        if not path.exists() or not path.read_text().strip():  # empty if the host died before the id was on disk
            draft = path.with_suffix(".new")
            draft.unlink(missing_ok=True)
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE_FILE), "w") as file:
                file.write(secrets.token_hex(8))
            draft.rename(path)
        return path.read_text().strip()

    def run_dir(self, sandbox_id: str) -> Path:
        return self._runs / sandbox_id

    def mirror_dir(self, sandbox_id: str) -> Path:
        return self._mirrors / sandbox_id

    def mirror_identity(self, sandbox_id: str) -> str:
        """Return an identity of the directory itself; empty if there is none.

        A container shows the directory that was mounted, even after it was removed and made again at the same path. The
        kernel keeps that inode as long as it is mounted, so a new directory never has the same number.
        """
        try:
            status = self.mirror_dir(sandbox_id).stat()
        except OSError:
            return ""
        return f"{status.st_dev:x}:{status.st_ino:x}"

    def mirror_identities(self) -> dict[str, str]:
        return {entry.name: self.mirror_identity(entry.name) for entry in self._mirrors.iterdir()}

    def install_runner(self) -> Path:
        """Copy the runner's files to a directory named by their hash, so that an upgrade keeps live runners working."""
        files = sorted(RUNNER_DIR.glob("*.py"))
        digest = hashlib.sha256()
        for file in files:
            digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
        target = self._runners / digest.hexdigest()[:16]
        if not target.exists():
            draft = self._runners / f".{target.name}.{os.getpid()}"
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir()
            # Readable by all users: it is the package's own code, and the containers that mount it may outlive a daemon
            # with another group.
            draft.chmod(0o755)
            for file in files:
                shutil.copyfile(file, draft / file.name)
                (draft / file.name).chmod(0o444)
                # For images with this Python version; unchecked, because the source file never changes.
                py_compile.compile(
                    str(draft / file.name),
                    doraise=True,
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )
            for compiled in (draft / "__pycache__", *(draft / "__pycache__").iterdir()):
                compiled.chmod(0o755 if compiled.is_dir() else 0o444)  # whatever the umask
            draft.rename(target)
        return target

    def make(self, sandbox_id: str) -> None:
        """Make the directories that one sandbox mounts read-only, readable by its group only."""
        for directory in (self.run_dir(sandbox_id), self.mirror_dir(sandbox_id)):
            make_shared(directory, self._gid)

    def remove(self, sandbox_id: str) -> None:
        for directory in (self.run_dir(sandbox_id), self.mirror_dir(sandbox_id)):
            if directory.exists():
                shutil.rmtree(directory)

    def ids(self) -> set[str]:
        """Return every sandbox id that has a directory here."""
        return {entry.name for parent in (self._runs, self._mirrors) for entry in parent.iterdir()}
