"""The blob cache: every text once, by hash, as a read-only file that mirrors link to.

Owns one directory, any part of which may be deleted at any time. Tenants never share a blob, because a link count would
reveal that another tenant has the same text. A blob found on disk is hashed before its first use.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from memo.documents import sha256_of
from memo.ids import TenantId
from sandboxd.permissions import SHARED_FILE, make_private, make_shared

FILE_MODE: Final = SHARED_FILE
_STAGING = "staging"
_MOST_KNOWN = 16_384  # about 8 MB of names
_IN_USE_S = 120.0
_BELIEVED_S = 600.0
_LONG_AGO = float("-inf")

Signature = tuple[int, int, int, int]
"""Inode, size, modification time and mode: two files differ in it, and so does a file after a change."""


class Blobs:
    """Safe to use from many threads: every step is one rename, and two equal blobs are interchangeable."""

    def __init__(self, root: Path, *, gid: int | None = None) -> None:
        """`gid` is the group that may read blobs through a mirror; by default the daemon's own."""
        self._root = str(root)
        self.gid = os.getegid() if gid is None else gid
        self._staging = f"{root}/{_STAGING}"
        self._numbers = itertools.count()
        self._known: OrderedDict[str, tuple[Signature | None, float]] = OrderedDict()
        """Each blob's signature when it was last hashed (or None) and when it was last requested, oldest first."""
        self._spaces: dict[TenantId, str] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Make the directory, and remove the drafts that a crash left."""
        make_private(Path(self._root))  # containers see links to blobs, never this directory
        shutil.rmtree(self._staging, ignore_errors=True)
        make_shared(self._staging, self.gid)  # blobs are created here and inherit its group

    def path(self, tenant: TenantId, sha256: str) -> str:
        space = self._spaces.get(tenant)
        if space is None:
            # A digest, because a host path never contains an external id.
            space = self._spaces[tenant] = f"{self._root}/{hashlib.sha256(tenant.encode()).hexdigest()[:16]}"
        return f"{space}/{sha256[:2]}/{sha256}"

    def find(self, tenant: TenantId, sha256: str) -> str | None:
        """Return the path of an intact blob, or None. A damaged blob is removed."""
        path = self.path(tenant, sha256)
        with self._lock:  # from here on `prune` treats it as about to be linked
            try:
                status = os.stat(path)
            except FileNotFoundError:
                return None
            signature = _signature(status)
            known = self._known.get(path)
            is_known = known is not None and known[0] == signature
            self._remember(path, signature if is_known else None)
        if is_known:
            return path
        if stat.S_IMODE(status.st_mode) == FILE_MODE:
            with open(path, "rb") as file:
                content = file.read()
            if sha256_of(content) == sha256:
                with self._lock:
                    self._remember(path, signature)
                return path
        self._forget(path)
        return None

    def find_lately(self, tenant: TenantId, sha256: str, now: float) -> str | None:
        """Do the same as `find`, but trust a recent result, because a snapshot looks up tens of thousands of texts.

        The blob may still be gone by the time it is linked. `now` is monotonic.
        """
        path = self.path(tenant, sha256)
        known = self._known.get(path)
        if known is not None and known[0] is not None and now - known[1] < _BELIEVED_S:
            return path
        return self.find(tenant, sha256)

    def put(self, tenant: TenantId, sha256: str, encoded: bytes, *, is_awaited: bool = True) -> str:
        """Return the path of the blob with this text, creating it if needed. Unless `is_awaited`, it may be evicted."""
        found = self.find(tenant, sha256)
        if found is not None:
            return found
        path = self.path(tenant, sha256)
        draft = f"{self._staging}/{next(self._numbers)}"
        try:
            signature = write_file(draft, encoded)
            try:
                os.rename(draft, path)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                os.rename(draft, path)
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
            raise
        with self._lock:
            self._remember(path, signature, None if is_awaited else _LONG_AGO)
        return path

    def adopt(self, tenant: TenantId, sha256: str, file: str, signature: Signature) -> None:
        """Link a file that was written with this text as its blob, unless a blob exists or the file has changed."""
        path = self.path(tenant, sha256)
        # Checked under a name of its own: under the blob's name, another thread may have just put the text.
        draft = f"{self._staging}/{next(self._numbers)}"
        try:
            os.link(file, draft)
            if _signature(os.stat(draft)) != signature:
                return
            try:
                os.link(draft, path)
            except FileNotFoundError:
                os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
                os.link(draft, path)
        except OSError:  # it exists already or cannot be linked; without it the text is read from the store again
            return
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)
        with self._lock:
            self._remember(path, signature)

    def read(self, tenant: TenantId, sha256: str) -> bytes | None:
        """Return the text if the cache has it intact."""
        path = self.find(tenant, sha256)
        if path is None:
            return None
        with open(path, "rb") as file:
            content = file.read()
        return content if sha256_of(content) == sha256 else None

    def read_by_prefix(self, tenant: TenantId, prefix: str) -> bytes | None:
        shard = Path(self.path(tenant, prefix)).parent
        if not shard.is_dir():
            return None
        names = [name for name in os.listdir(shard) if name.startswith(prefix)]
        return self.read(tenant, names[0]) if len(names) == 1 else None

    def evict_damaged(self, tenant: TenantId, sha256: str) -> None:
        """Hash the blob now, and remove it if its content does not match its name."""
        self._known.pop(self.path(tenant, sha256), None)
        self.find(tenant, sha256)

    def prune(self, limit_bytes: int) -> int:
        """Evict blobs that no mirror shows, oldest first, until the rest fits. Return how many were evicted.

        Blobs that a mirror shows stay, so a cache of live texts may exceed its bound.
        """
        total = sum(status.st_size for _, status in self._files())
        if total <= limit_bytes:
            return 0
        unused = [(status.st_ctime, status.st_size, path) for path, status in self._files() if status.st_nlink == 1]
        removed = 0
        for _, size_bytes, path in sorted(unused):
            if total <= limit_bytes:
                break
            with self._lock:
                known = self._known.get(path)
                if known is not None and time.monotonic() - known[1] < _IN_USE_S:
                    continue  # about to be linked
                if _link_count(path) == 1:
                    self._forget(path)
                    removed += 1
            total -= size_bytes
        return removed

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        for directory, _, names in os.walk(self._root):
            for name in names if directory != self._staging else ():
                path = f"{directory}/{name}"
                try:
                    status = os.stat(path)
                except FileNotFoundError:
                    continue
                yield path, status

    def _remember(self, path: str, signature: Signature | None, at: float | None = None) -> None:
        self._known.pop(path, None)  # and re-insert it as the newest
        self._known[path] = (signature, time.monotonic() if at is None else at)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)  # it is hashed again at its next use

    def _forget(self, path: str) -> None:
        self._known.pop(path, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def write_file(path: str, encoded: bytes) -> Signature:
    """Write a new read-only file and return its signature."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        rest = memoryview(encoded)
        while rest:
            rest = rest[os.write(fd, rest) :]
        status = os.fstat(fd)
        if stat.S_IMODE(status.st_mode) != FILE_MODE:
            os.fchmod(fd, FILE_MODE)  # because the umask may have removed bits
    finally:
        os.close(fd)
    return (status.st_ino, status.st_size, status.st_mtime_ns, stat.S_IFREG | FILE_MODE)


def _signature(status: os.stat_result) -> Signature:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)


def _link_count(path: str) -> int:
    try:
        return os.stat(path).st_nlink
    except FileNotFoundError:
        return 0
