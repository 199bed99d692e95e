"""Opens the agent's paths: in its own directories, and for reading also files that every user may read.

A path proves nothing until it is open, because the agent may swap links at any time. So every check is made on the
descriptor, by the path that the kernel reports for it. The runner's own /proc is never reachable from here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

from .container_paths import NAMES_OF_ROOTS, READ_ONLY, WORKSPACE
from .container_paths import ROOTS as _ROOTS
from .failure import Failure, explain

ROOTS = tuple(root.encode() for root in _ROOTS)
_PRIVATE = (b"/proc", b"/sys", b"/dev", b"/run")
"""Never read through the runner: /proc depends on the process that reads it, and /run contains the runner's socket."""
_READ_ONLY = tuple(path.encode() for path in READ_ONLY)
"""Checked by name before a change: a rename out of another mount fails with EXDEV before the kernel says EROFS."""
MAX_LINKS = 16
_OPENAT2 = 437
_AT_FDCWD = -100
_RESOLVE_NO_MAGICLINKS = 2
_libc = ctypes.CDLL(None, use_errno=True)


def encode_path(path: str) -> bytes:
    if not path.startswith("/"):
        raise Failure("InvalidRequest", f"cannot use the path {path[:200]!r}: it must be absolute")
    if "\0" in path:
        raise Failure("InvalidRequest", "cannot use this path: it contains a NUL")
    if len(path) > 4096:
        raise Failure("InvalidRequest", f"cannot use this path: {len(path)} characters, and the limit is 4096")
    try:
        return path.encode("utf-8", "surrogateescape")  # a name may be any bytes, valid UTF-8 or not
    except UnicodeEncodeError:
        raise Failure("InvalidRequest", "cannot use this path: it is not valid UTF-8") from None


def is_inside(real: bytes, roots: tuple[bytes, ...] = ROOTS) -> bool:
    return any(real == root or real.startswith(root + b"/") for root in roots)


def real_path(fd: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % fd)


def _check_inside(fd: int, action: str, path: str) -> bytes:
    real = real_path(fd)
    if not is_inside(real):
        raise Failure("OutsideSandbox", f"cannot {action} {path}: it leads outside {NAMES_OF_ROOTS}")
    return real


def _check_readable(fd: int, action: str, path: str) -> None:
    real, status = real_path(fd), os.fstat(fd)
    if is_inside(real):
        return
    if not _is_public(status, real):
        why = f"it leads outside {NAMES_OF_ROOTS} to something other than a file that every user may read"
        raise Failure("OutsideSandbox", f"cannot {action} {path}: {why}")
    check_regular(status, action, path)


def _is_public(status: os.stat_result, real: bytes) -> bool:
    """Return whether any user could read this file, or enter this directory, by this name: then the runner reveals
    nothing new.

    The runner has the agent's user but is another process, so whatever depends on the process is excluded: all of
    /proc, by any name. Nothing outside the roots can be renamed, so the directories are checked by name.
    """
    needed = {stat.S_IFREG: stat.S_IROTH, stat.S_IFDIR: stat.S_IXOTH}.get(stat.S_IFMT(status.st_mode), 0)
    if not status.st_mode & needed or is_inside(real, _PRIVATE):
        return False
    try:
        named = os.stat(real, follow_symlinks=False)
        if (named.st_dev, named.st_ino) != (status.st_dev, status.st_ino) or status.st_dev == os.stat("/proc").st_dev:
            return False
        parent = real
        while parent != b"/":
            parent = os.path.dirname(parent)
            if not os.stat(parent, follow_symlinks=False).st_mode & stat.S_IXOTH:
                return False
    except OSError:
        return False
    return True


def _open_name(path: bytes, flags: int) -> int:
    """Open a path with O_PATH without following the magic links of /proc, directly or through another link."""
    how = struct.pack("=QQQ", flags | os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_MAGICLINKS)
    fd = int(_libc.syscall(_OPENAT2, _AT_FDCWD, path, how, len(how)))
    if fd >= 0:
        return fd
    error = ctypes.get_errno()
    if error in (errno.ENOSYS, errno.EPERM):  # a kernel without openat2; the caller checks what was opened
        return os.open(path, flags | os.O_PATH | os.O_CLOEXEC)
    raise OSError(error, os.strerror(error))


def enter(directory: str) -> None:
    """Make this the working directory of the next process: inside the roots, or one that every user may enter."""
    try:
        if directory == WORKSPACE:  # a mount on a read-only root, so its name always means the same directory
            os.chdir(directory)
            return
        fd = _open_name(encode_path(directory), os.O_DIRECTORY)
        try:
            real = real_path(fd)
            if not is_inside(real) and not _is_public(os.fstat(fd), real):
                why = f"it leads outside {NAMES_OF_ROOTS} to something other than a directory that every user may enter"
                raise Failure("OutsideSandbox", f"cannot run in {directory}: {why}")
            os.fchdir(fd)
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise Failure("FileNotFound", f"cannot run in {directory}: no such directory; make it first") from None
    except NotADirectoryError:
        raise Failure("NotADirectory", f"cannot run in {directory}: it is not a directory; name one") from None
    except OSError as error:
        raise explain(error, "run in", directory) from None


def open_any(path: str, action: str, *, public: bool = False, follow: bool = True) -> int:
    """Return a descriptor that only names the file (O_PATH): inside the roots or, with `public`, readable by everyone.

    Opening it has no side effect. Without `follow`, a link at the end of the path is itself opened.
    """
    try:
        fd = _open_name(encode_path(path), 0 if follow else os.O_NOFOLLOW)
    except OSError as error:
        raise explain(error, action, path) from None
    try:
        (_check_readable if public else _check_inside)(fd, action, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_directory(path: str, action: str, *, make: bool) -> int:
    """Return a descriptor that only names a directory inside the roots (O_PATH); with `make`, make what is missing."""
    fd = _open_directory(encode_path(path), make, action, path)
    try:
        _check_inside(fd, action, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_read_only(real: bytes) -> bool:
    """Return whether a path that the kernel reported is in a directory that the agent never writes."""
    return is_inside(real, _READ_ONLY)


def open_regular(path: str, action: str, *, public: bool = False) -> tuple[int, os.stat_result]:
    """Return a readable descriptor of a regular file; `public` as for `open_any`."""
    named = open_any(path, action, public=public)
    try:
        check_regular(os.fstat(named), action, path)
        # the same file, wherever the path leads now; NONBLOCK so that not even a lease blocks the open
        fd = os.open(b"/proc/self/fd/%d" % named, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise explain(error, action, path) from None
    finally:
        os.close(named)
    return fd, os.fstat(fd)


def check_regular(status: os.stat_result, action: str, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise explain(OSError(errno.EISDIR, ""), action, path)
    if not stat.S_ISREG(status.st_mode):
        raise Failure("InvalidRequest", f"cannot {action} {path}: it is {_noun(status.st_mode)}, not a regular file")


def _noun(mode: int) -> str:
    for test, noun in (
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISLNK, "a symbolic link"),
    ):
        if test(mode):
            return noun
    return "a device"


class Target:
    """Where a new version of a file goes: its directory, held open, and its name in it."""

    __slots__ = ("directory", "existing", "name", "path")

    def __init__(self, directory: int, name: bytes, existing: os.stat_result | None, path: str) -> None:
        self.directory = directory
        self.name = name
        self.existing = existing
        self.path = path


def open_target(path: str, make_parents: bool, action: str) -> Target:
    """Find where to write `path`, following links only inside the roots. The caller closes `directory`."""
    current = encode_path(path)
    for _ in range(MAX_LINKS):
        parent, _slash, name = current.rstrip(b"/").rpartition(b"/")
        if name in (b"", b".", b"..") or current.endswith(b"/") or current in ROOTS:
            raise explain(OSError(errno.EISDIR, ""), action, path)
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


def open_parent(path: str, action: str, *, make_parents: bool = False) -> tuple[int, bytes]:
    """Return the directory of the path's last name, held open, and that name, so that a link there is never followed.

    The caller closes the directory.
    """
    encoded = encode_path(path).rstrip(b"/")
    parent, _slash, name = encoded.rpartition(b"/")
    if encoded in ROOTS:
        raise Failure(
            "InvalidRequest", f"cannot {action} {path}: it is one of the sandbox's own directories; name a path in it"
        )
    if name in (b"", b".", b".."):
        raise Failure("InvalidRequest", f"cannot {action} {path}: it does not end with a name")
    directory = _open_directory(parent or b"/", make_parents, action, path)
    try:
        real = _check_inside(directory, action, path)
        if is_inside(real + b"/" + name, _READ_ONLY):
            raise explain(OSError(errno.EROFS, ""), action, path)
    except BaseException:
        os.close(directory)
        raise
    return directory, name


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
        return  # another process made it at the same moment
