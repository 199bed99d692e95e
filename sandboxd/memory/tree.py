"""Mirror trees: host directories that containers see read-only.

A tree is a cache of the store and may be deleted and rebuilt at any time. A file is replaced by a rename within its
directory, so a reader sees the old text or the new one. The directories of DIRECTORIES are made once and never
replaced, because a container's mount is bound to their inodes; those of documents come and go with their files.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from memo.document_names import MOST_SEGMENTS
from memo.documents import sha256_of
from sandboxd.memory.blobs import FILE_MODE, Signature, write_file
from sandboxd.permissions import make_shared

MANIFEST: Final = ".manifest.json"
TEMPORARY: Final = ".new-"
DIRECTORIES: Final = ("", "session", "session/tool-results", "user")
_OF_DOCUMENTS: Final = ("session", "user")
_STALE_S = 60.0
_NO_LINKS = (errno.EMLINK, errno.EXDEV, errno.EPERM, errno.ENOTSUP)

_TRIES = 4
_numbers = itertools.count()
_mine = f"{os.getpid():x}-{time.time_ns():x}"


def prepare(root: str, gid: int | None = None) -> None:
    """Make the tree's directories, readable by the container's group: `gid`, or the group that the root already has."""
    if gid is None:
        try:
            gid = os.stat(root).st_gid
        except FileNotFoundError:
            gid = os.getegid()
    for directory in DIRECTORIES:
        make_shared(f"{root}/{directory}", gid)


def make_parents(root: str, relative: str, gid: int | None = None) -> None:
    """Make the directories of a document's file. A file in the place of one is removed: the store no longer has it."""
    prepare(root, gid)
    gid = os.stat(root).st_gid if gid is None else gid
    parts = relative.split("/")[:-1]
    for count in range(2, len(parts) + 1):
        directory = f"{root}/{'/'.join(parts[:count])}"
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.lstat(directory).st_mode):
                os.unlink(directory)
        make_shared(directory, gid)


def write_new(root: str, relative: str, encoded: bytes, gid: int | None = None) -> Signature:
    """Write a file that does not exist, in a tree that no reader sees yet."""
    try:
        return write_file(f"{root}/{relative}", encoded)
    except (FileNotFoundError, NotADirectoryError):
        make_parents(root, relative, gid)
        return write_file(f"{root}/{relative}", encoded)


def show(blob: str, root: str, relative: str, gid: int | None = None) -> None:
    """Link a blob at a path that should be free; replace a file that exists there after all."""
    target = f"{root}/{relative}"
    try:
        os.link(blob, target)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):  # a directory is missing
            make_parents(root, relative, gid)
        elif error.errno != errno.EEXIST and error.errno not in _NO_LINKS:
            raise
        directory, name = split(relative)
        temporary = temporary_name()
        replace(blob, f"{root}/{directory}", name, temporary)
        # Renaming onto another link of the same file succeeds without doing anything and leaves the temporary name.
        _unlink(f"{root}/{directory}/{temporary}")


def replace(blob: str, directory: str, name: str, temporary: str) -> None:
    """Replace a file that has another text with a blob. The file is never missing and never partial."""
    for _ in range(_TRIES - 1):
        try:
            _replace(blob, directory, name, temporary)
            return
        except FileNotFoundError:
            # Also raised for a blob that another thread replaces by an equal one while it is being linked.
            if not (os.path.exists(blob) and os.path.isdir(directory)):
                raise
    _replace(blob, directory, name, temporary)


def _replace(blob: str, directory: str, name: str, temporary: str) -> None:
    draft, target = f"{directory}/{temporary}", f"{directory}/{name}"
    try:
        _link_or_copy(blob, draft)
        os.rename(draft, target)  # rename, not truncate: a reader must never see half a file
    except IsADirectoryError:
        shutil.rmtree(target)
        os.rename(draft, target)
    except OSError:
        _unlink(draft)
        raise


def split(relative: str) -> tuple[str, str]:
    directory, _, name = relative.rpartition("/")
    return directory, name


def temporary_name() -> str:
    return f"{TEMPORARY}{_mine}-{next(_numbers)}"


class MirrorDraft:
    """A new text for one tree: a temporary file in the target's directory until it is finished or dropped."""

    def __init__(self, root: str, relative: str, gid: int | None = None) -> None:
        self._root = root
        self._gid = gid
        self._relative = relative
        self._target = f"{root}/{relative}"
        self._temporary = f"{root}/{split(relative)[0]}/{temporary_name()}"

    def write(self, encoded: bytes) -> None:
        try:
            write_file(self._temporary, encoded)
        except (FileNotFoundError, NotADirectoryError):  # a directory is missing
            make_parents(self._root, self._relative, self._gid)
            write_file(self._temporary, encoded)

    def finish(self) -> None:
        try:
            os.rename(self._temporary, self._target)  # rename, not truncate: a reader must never see half a file
        except IsADirectoryError:
            shutil.rmtree(self._target)
            os.rename(self._temporary, self._target)

    def drop(self) -> None:
        _unlink(self._temporary)


def write_manifest(root: str, encoded: bytes) -> None:
    temporary = f"{root}/{temporary_name()}"
    try:
        write_file(temporary, encoded)
        os.rename(temporary, f"{root}/{MANIFEST}")
    except OSError:
        _unlink(temporary)
        raise


def read_manifest(root: str) -> bytes | None:
    try:
        return Path(root, MANIFEST).read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return None


def remove(root: str, relative: str, *, is_directory_of_documents: bool = False) -> None:
    """Remove a file and the directories that become empty, or a directory that does not belong here."""
    path = f"{root}/{relative}"
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except IsADirectoryError:
        if is_directory_of_documents:
            return
        shutil.rmtree(path)
    directory = split(relative)[0]
    while directory not in DIRECTORIES:
        try:
            os.rmdir(f"{root}/{directory}")
        except FileNotFoundError:
            pass
        except OSError:  # it shows other documents
            return
        directory = split(directory)[0]


def remove_empty(root: str) -> None:
    """Remove empty directories of documents, which a crash may leave."""
    for top in _OF_DOCUMENTS:
        try:
            with os.scandir(f"{root}/{top}") as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name in names:
            if f"{top}/{name}" not in DIRECTORIES:  # so that thousands of artifacts are not listed
                for directory, _, _ in os.walk(f"{root}/{top}/{name}", topdown=False):
                    with contextlib.suppress(OSError):  # not empty
                        os.rmdir(directory)


def clear(root: str) -> None:
    """Empty the tree; its directories stay."""
    for relative in list(walk(root)):
        remove(root, relative)
    remove_empty(root)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{root}/{MANIFEST}")


def scan(root: str, *, is_quiet: bool) -> dict[str, str | None]:
    """Hash every file. An entry that is neither a regular file nor a directory of the tree maps to None.

    Temporary files of an earlier process are removed if the tree `is_quiet`; others once they are too old to belong to
    a refresh under way. Those of this process count as in use even in a quiet tree: a sandbox that comes back reuses
    its directory, and a scan of its last mirror may still be running.
    """
    found: dict[str, str | None] = {}
    for relative in list(walk(root)):
        path = f"{root}/{relative}"
        try:
            if relative.rpartition("/")[2].startswith(TEMPORARY):
                is_ours = relative.rpartition("/")[2].startswith(f"{TEMPORARY}{_mine}-")
                if (is_quiet and not is_ours) or time.time() - os.lstat(path).st_ctime > _STALE_S:
                    os.unlink(path)
                continue
            found[relative] = _hash(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
    return found


def look_at(root: str, relative: str) -> dict[str, str | None]:
    """Hash one file, as `scan` does."""
    try:
        return {relative: _hash(f"{root}/{relative}")}
    except (FileNotFoundError, NotADirectoryError):
        return {}


def walk(root: str) -> Iterator[str]:
    """Yield the paths in the tree relative to its root, without its own directories and the manifest."""
    for directory in DIRECTORIES:
        yield from _walk(root, directory, MOST_SEGMENTS - 1 if directory in _OF_DOCUMENTS else 0)


def _walk(root: str, directory: str, levels: int) -> Iterator[str]:
    """Yield what a directory holds; directories of documents, up to so many levels, by what they hold."""
    try:
        with os.scandir(f"{root}/{directory}") as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, is_directory in found:
        relative = f"{directory}/{name}" if directory else name
        if relative in DIRECTORIES or relative == MANIFEST:
            continue
        if is_directory and levels:
            yield from _walk(root, relative, levels - 1)
        else:
            yield relative


def sweep(mirrors: Path) -> int:
    """Remove the temporary files that a crash left in any mirror. Only safe at start, before any refresh."""
    removed = 0
    for root in mirrors.iterdir() if mirrors.is_dir() else ():
        for relative in list(walk(str(root))):
            if relative.rpartition("/")[2].startswith(TEMPORARY):
                remove(str(root), relative)
                removed += 1
    return removed


def _hash(path: str) -> str | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError:  # a symlink or a socket, which a tree never has
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) != FILE_MODE:
            return None
        with open(fd, "rb", closefd=False) as file:
            return sha256_of(file.read())
    finally:
        os.close(fd)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _link_or_copy(blob: str, target: str) -> None:
    try:
        os.link(blob, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        write_file(target, Path(blob).read_bytes())
