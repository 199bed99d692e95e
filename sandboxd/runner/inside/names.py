"""Makes directories, and moves and removes files and directories. Each function is one job for a worker.

A change is made in a directory that is held open, and never to the target of a link.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat

from . import files, paths
from .failure import Failure, explain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RENAMEAT2 = {"x86_64": 316}.get(os.uname().machine, 276)
"""The number of the system call; every architecture newer than x86-64 has the second one."""
_RENAME_NOREPLACE = 1
_libc = ctypes.CDLL(None, use_errno=True)


def make_directory(path: str, parents: bool) -> dict[str, Any]:
    """Make a directory. With `parents`, also make missing parents, and accept an existing directory."""
    try:
        if paths.encode_path(path) in paths.ROOTS:
            raise FileExistsError(errno.EEXIST, "")
        directory, name = paths.open_parent(path, "make", make_parents=parents)
        try:
            os.mkdir(name, 0o755, dir_fd=directory)
            return files.describe(path, os.stat(name, dir_fd=directory, follow_symlinks=False))
        finally:
            os.close(directory)
    except OSError as error:
        found = _look_at_directory(path) if parents and error.errno == errno.EEXIST else None
        if found is None:
            raise explain(error, "make", path) from None
        return {**files.describe(path, found), "existed": True}


def _look_at_directory(path: str) -> os.stat_result | None:
    """Return the stat of a directory, possibly behind a link; None if it is anything else or outside the roots."""
    try:
        fd = paths.open_any(path, "make")
    except Failure:
        return None
    try:
        status = os.fstat(fd)
        return status if stat.S_ISDIR(status.st_mode) else None
    finally:
        os.close(fd)


def move(source: str, target: str, replace: bool) -> dict[str, Any]:
    """Rename within one filesystem, which readers see as one step. Without `replace`, nothing is overwritten."""
    from_directory, from_name = paths.open_parent(source, "move")
    try:
        to_directory, to_name = paths.open_parent(target, f"move {source} to")
        try:
            status = os.stat(from_name, dir_fd=from_directory, follow_symlinks=False)
            if replace:
                os.rename(from_name, to_name, src_dir_fd=from_directory, dst_dir_fd=to_directory)
            else:
                _rename_to_free(from_directory, from_name, to_directory, to_name)
            return files.describe(target, status)
        finally:
            os.close(to_directory)
    except OSError as error:
        raise _explain_move(error, source, target) from None
    finally:
        os.close(from_directory)


def _rename_to_free(from_directory: int, from_name: bytes, to_directory: int, to_name: bytes) -> None:
    arguments = (from_directory, from_name, to_directory, to_name, _RENAME_NOREPLACE)
    if _libc.syscall(_RENAMEAT2, *arguments) == 0:
        return
    error = ctypes.get_errno()
    if error not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(error, os.strerror(error))
    # A filesystem without this flag: the kernel cannot refuse a target that appears between the check and the rename.
    try:
        os.stat(to_name, dir_fd=to_directory, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(from_name, to_name, src_dir_fd=from_directory, dst_dir_fd=to_directory)
    else:
        raise FileExistsError(errno.EEXIST, "")


def _explain_move(error: OSError, source: str, target: str) -> Failure:
    reasons = {
        errno.ENOENT: ("FileNotFound", "no such file or directory"),
        errno.EEXIST: ("FileExists", "the target exists already; remove it, choose another name or set replace"),
        errno.ENOTEMPTY: ("DirectoryNotEmpty", "the target is a directory that is not empty; remove it first"),
        errno.EISDIR: ("IsADirectory", "the target is a directory; name a path in it"),
        errno.ENOTDIR: ("NotADirectory", "the target is a file, and a directory cannot replace it; remove it first"),
        errno.EXDEV: ("InvalidRequest", "the target is on another filesystem; run `mv` in the sandbox instead"),
        errno.EINVAL: ("InvalidRequest", "a directory cannot be moved into itself"),
    }
    if error.errno in reasons:
        code, reason = reasons[error.errno]
        return Failure(code, f"cannot move {source} to {target}: {reason}")
    return explain(error, "move", f"{source} to {target}")


def remove(path: str) -> dict[str, Any]:
    """Remove a file, a link or an empty directory."""
    directory, name = paths.open_parent(path, "remove")
    try:
        remove_name(directory, name)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            why = "the directory is not empty; remove what is in it first or set recursive"
            raise Failure("DirectoryNotEmpty", f"cannot remove {path}: {why}") from None
        raise explain(error, "remove", path) from None
    finally:
        os.close(directory)
    return {}


def remove_name(directory: int, name: bytes) -> None:
    """Remove an entry of any kind that has nothing below it; raise the kernel's error."""
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        os.rmdir(name, dir_fd=directory)
