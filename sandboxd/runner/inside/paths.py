"""Opening what the agent's paths name, and only inside its own directories. Opens first, then checks what it got.

A path means nothing until it is open: the agent may swap links while we look. So every check is made on the
descriptor, by the path the kernel gives it. The runner's own /proc is never reachable from here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

from .failure import Failure, explain, reason_of

ROOTS = (b"/workspace", b"/tmp", b"/skills")
MAX_LINKS = 16
_OPENAT2 = 437
_AT_FDCWD = -100
_RESOLVE_NO_MAGICLINKS = 2
_libc = ctypes.CDLL(None, use_errno=True)


def encode_path(path: str) -> bytes:
    if not path.startswith("/"):
        raise Failure("InvalidRequest", f"cannot use the path {path[:200]!r}: it must be absolute")
    if "\0" in path:
        raise Failure("InvalidRequest", "cannot use this path: it holds a NUL")
    if len(path) > 4096:
        raise Failure("InvalidRequest", f"cannot use this path: {len(path)} characters, the most is 4096")
    try:
        return path.encode("utf-8")
    except UnicodeEncodeError:
        raise Failure("InvalidRequest", "cannot use this path: it is not valid UTF-8") from None


def is_inside(real: bytes) -> bool:
    return any(real == root or real.startswith(root + b"/") for root in ROOTS)


def real_path(fd: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % fd)


def _check_inside(fd: int, action: str, path: str) -> bytes:
    real = real_path(fd)
    if not is_inside(real):
        raise Failure("OutsideSandbox", f"cannot {action} {path}: it leads outside /workspace, /tmp and /skills")
    return real


def _open_name(path: bytes, flags: int) -> int:
    """Open what a path names (O_PATH), through the links of /proc neither directly nor by way of another link."""
    how = struct.pack("=QQQ", flags | os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_MAGICLINKS)
    fd = int(_libc.syscall(_OPENAT2, _AT_FDCWD, path, how, len(how)))
    if fd >= 0:
        return fd
    error = ctypes.get_errno()
    if error in (errno.ENOSYS, errno.EPERM):  # a kernel without it; what was opened is checked by the caller
        return os.open(path, flags | os.O_PATH | os.O_CLOEXEC)
    raise OSError(error, os.strerror(error))


def enter(directory: str) -> None:
    """Make this the working directory of the next process; it is subject to the same rules as every path."""
    try:
        if directory == "/workspace":  # a mount on a read-only root: its name always means the same directory
            os.chdir(directory)
            return
        fd = _open_name(encode_path(directory), os.O_DIRECTORY)
        try:
            _check_inside(fd, "run in", directory)
            os.fchdir(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise Failure("InvalidRequest", f"cannot run in {directory}: {reason_of(error)}") from None


def open_any(path: str, action: str) -> int:
    """Return a descriptor that only names the file (O_PATH), inside the roots. Opening it has no side effect."""
    try:
        fd = _open_name(encode_path(path), 0)
    except OSError as error:
        if error.errno == errno.EACCES:
            raise Failure("OutsideSandbox", f"cannot {action} {path}: permission denied") from None
        raise explain(error, action, path) from None
    try:
        _check_inside(fd, action, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_regular(path: str, action: str) -> tuple[int, os.stat_result]:
    """Return a readable descriptor of a regular file inside the roots."""
    named = open_any(path, action)
    try:
        check_regular(os.fstat(named), action, path)
        # the same file, whatever the path leads to by now; NONBLOCK so that not even a lease can hold us
        fd = os.open(b"/proc/self/fd/%d" % named, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise explain(error, action, path) from None
    finally:
        os.close(named)
    return fd, os.fstat(fd)


def check_regular(status: os.stat_result, action: str, path: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Failure("InvalidRequest", f"cannot {action} {path}: it is {_noun(status.st_mode)}, not a regular file")


def _noun(mode: int) -> str:
    for test, noun in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISLNK, "a symbolic link"),
    ):
        if test(mode):
            return noun
    return "a device"


class Target:
    """Where a new version of a file will go: its directory, held open, and its name in there."""

    __slots__ = ("directory", "existing", "name", "path")

    def __init__(self, directory: int, name: bytes, existing: os.stat_result | None, path: str) -> None:
        self.directory = directory
        self.name = name
        self.existing = existing
        self.path = path


def open_target(path: str, make_parents: bool, action: str) -> Target:
    """Find where to write `path`: through links as far as they stay inside the roots. The caller closes `directory`."""
    current = encode_path(path)
    for _ in range(MAX_LINKS):
        parent, _slash, name = current.rstrip(b"/").rpartition(b"/")
        if name in (b"", b".", b"..") or current.endswith(b"/"):
            raise Failure("InvalidRequest", f"cannot {action} {path}: it does not name a file")
        directory = _open_directory(parent or b"/", make_parents, action, path)
        try:
            real = _check_inside(directory, action, path)
            existing = _look(directory, name, action, path)
            if existing is None or not stat.S_ISLNK(existing.st_mode):
                if existing is not None:
                    check_regular(existing, action, path)
                return Target(directory, name, existing, path)
            link = os.readlink(name, dir_fd=directory)
        except OSError as error:
            os.close(directory)
            raise explain(error, action, path) from None
        except Failure:
            os.close(directory)
            raise
        os.close(directory)
        current = link if link.startswith(b"/") else real + b"/" + link
    raise Failure("InvalidRequest", f"cannot {action} {path}: too many symbolic links")


def _look(directory: int, name: bytes, action: str, path: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explain(error, action, path) from None


def _open_directory(parent: bytes, make_parents: bool, action: str, path: str) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return _open_name(parent, os.O_DIRECTORY)
    except FileNotFoundError as error:
        if not make_parents:
            raise explain(error, action, path) from None
    except OSError as error:
        raise explain(error, action, path) from None
    fd = os.open(b"/", flags)
    try:
        for part in parent.split(b"/"):
            if not part:
                continue
            try:
                deeper = os.open(part, flags, dir_fd=fd)
            except FileNotFoundError:
                _check_inside(fd, action, path)
                _make_directory(part, fd)
                deeper = os.open(part, flags, dir_fd=fd)
            os.close(fd)
            fd = deeper
    except OSError as error:
        os.close(fd)
        raise explain(error, action, path) from None
    except Failure:
        os.close(fd)
        raise
    return fd


def _make_directory(name: bytes, parent: int) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=parent)
    except FileExistsError:
        return  # somebody else just made it
