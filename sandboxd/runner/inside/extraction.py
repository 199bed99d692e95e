"""A tar stream written into a directory, entry by entry. Nothing outside the directory is touched, no link followed.

A file is complete or absent under its name. Owners, setuid and setgid bits are ignored; modes and times are kept. What
is there already is kept, unless an entry replaces it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from . import paths
from .descent import Descent
from .failure import Failure, explain
from .tar_stream import DIRECTORY, FILE, HARD_LINK, NotTar, TarEntry, TarReader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CREATE = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SHOWN_CHARACTERS = 200


class Extraction:
    """Call `feed` with the pieces of an archive, then `finish`; `close` at any time leaves what is written so far."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reader = TarReader()
        self._entries = self._bytes = 0
        self._file: _NewFile | None = None
        self._entry: TarEntry | None = None
        self._top = paths.open_directory(path, "extract into", make=True)
        try:
            self._real = paths.real_path(self._top)
            if paths.is_read_only(self._real):
                raise explain(OSError(errno.EROFS, ""), "extract into", path)
            self._descent = Descent(os.dup(self._top), os.O_PATH)
        except BaseException:
            os.close(self._top)
            raise

    def feed(self, data: bytes) -> int:
        """Extract what this piece of the archive completes; return its size."""
        try:
            for item in self._reader.feed(data):
                if isinstance(item, TarEntry):
                    self._entry = item
                    self._begin(item)
                elif self._file is not None:
                    self._file.write(item)
                if self._file is not None and self._file.is_complete:
                    self._file.commit()
                    self._bytes += self._file.size
                    self._file = None
                    self._entries += 1
        except (OSError, OverflowError, NotTar, Failure, _Refused) as error:
            raise self._explain(error) from None
        return len(data)

    def finish(self) -> dict[str, Any]:
        """Set modes and times of the last directories; return how many entries and bytes of contents were written."""
        try:
            if not self._reader.is_over:
                self._entry = None
                raise NotTar("it ends in the middle; send all of it")
            while self._descent.depth:
                self._leave()
        except (OSError, NotTar, Failure) as error:
            raise self._explain(error) from None
        return {"entries": self._entries, "bytes": self._bytes}

    def close(self) -> None:
        """Remove an incomplete file and close every descriptor. Safe to call again."""
        if self._file is not None:
            self._file.discard()
            self._file = None
        self._descent.close()
        if self._top >= 0:
            os.close(self._top)
            self._top = -1

    def _begin(self, entry: TarEntry) -> None:
        if entry.refusal:
            raise _Refused(entry.refusal)
        parts = _parts(entry.name)
        if not parts:
            if entry.type != DIRECTORY:
                raise _Refused("it has no name")
            return  # the directory itself, which keeps its mode and time
        if paths.is_read_only(b"/".join([self._real, *parts])):
            raise _Refused("it is read-only; leave it out of the archive", "ReadOnly")
        if entry.type == DIRECTORY:
            self._go_to(parts)
            self._descent.current.note = (entry.mode, entry.mtime_ns)
            self._entries += 1
            return
        name = parts.pop()
        self._go_to(parts)
        directory = self._descent.current.fd
        if entry.type == FILE:
            self._file = _NewFile(directory, name, entry)
            return
        draft = _draft_name()
        try:
            if entry.type == HARD_LINK:
                self._link(_parts(entry.link), draft, directory)
            else:
                os.symlink(entry.link, draft, dir_fd=directory)
                times = (entry.mtime_ns, entry.mtime_ns)
                os.utime(draft, ns=times, dir_fd=directory, follow_symlinks=False)
            os.rename(draft, name, src_dir_fd=directory, dst_dir_fd=directory)
        finally:
            _remove(draft, directory)  # a rename of one link over another of the same file leaves both
        self._entries += 1

    def _go_to(self, parts: list[bytes]) -> None:
        """Make this directory the current one; make it and those above it if they are missing."""
        descent = self._descent
        here = descent.names()
        shared = 0
        while shared < min(len(here), len(parts)) and here[shared] == parts[shared]:
            shared += 1
        while descent.depth > shared:
            self._leave()
        for part in parts[shared:]:
            try:
                descent.enter(part)
            except FileNotFoundError:
                with contextlib.suppress(FileExistsError):  # another process made it at the same moment
                    os.mkdir(part, 0o755, dir_fd=descent.current.fd)
                descent.enter(part)
            except NotADirectoryError:
                why = "a part of its path is a file or a link, and links are not followed; remove it first"
                raise _Refused(why, "NotADirectory") from None

    def _leave(self) -> None:
        """Return to the parent. Modes and times are set last: a directory may be read-only, and entries change it."""
        level = self._descent.current
        if level.note is not None:
            mode, mtime_ns = level.note
            place = b"/proc/self/fd/%d" % level.fd  # it only names the directory, which need not be readable
            os.chmod(place, mode & 0o1777)
            os.utime(place, ns=(mtime_ns, mtime_ns))
        self._descent.leave()

    def _link(self, parts: list[bytes], draft: bytes, directory: int) -> None:
        """Make another name of a file that lies below the top."""
        if not parts:
            raise _Refused("it is a link to nothing")
        if paths.is_read_only(b"/".join([self._real, *parts])):
            raise _Refused("it is a link to a read-only file", "ReadOnly")
        fd = os.dup(self._top)
        try:
            for part in parts[:-1]:
                deeper = os.open(part, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = deeper
            if not stat.S_ISREG(os.stat(parts[-1], dir_fd=fd, follow_symlinks=False).st_mode):
                raise _Refused("it is a hard link to something other than a regular file")
            os.link(parts[-1], draft, src_dir_fd=fd, dst_dir_fd=directory, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            raise _Refused("it is a hard link to a file that is not there") from None
        finally:
            os.close(fd)

    def _explain(self, error: Exception) -> Failure:
        if isinstance(error, NotTar):
            failure = Failure("InvalidRequest", f"cannot read the archive: {error}")
        else:
            name = (self._entry.name if self._entry is not None else b"").decode("utf-8", "surrogateescape")
            shown = name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}..."
            action, place = f"extract {shown} into", self._path[: 2 * _SHOWN_CHARACTERS]
            if isinstance(error, _Refused):
                failure = Failure(error.code, f"cannot {action} {place}: {error}")
            elif isinstance(error, Failure):
                failure = Failure(error.code, f"cannot {action} {place}: {error.message}")
            elif isinstance(error, OSError):
                failure = explain(error, action, place)
            else:
                failure = Failure("InvalidRequest", f"cannot {action} {place}: its time is out of range")
        self.close()
        return Failure(failure.code, f"{failure.message}; entries written before: {self._entries}")


class _Refused(Exception):
    """An entry cannot be extracted."""

    def __init__(self, why: str, code: str = "InvalidRequest") -> None:
        super().__init__(why)
        self.code = code


class _NewFile:
    """A file being extracted: a draft beside its name until all of its content is there."""

    def __init__(self, directory: int, name: bytes, entry: TarEntry) -> None:
        self.size = entry.size
        self._written = 0
        self._mode, self._mtime_ns = entry.mode & 0o777, entry.mtime_ns
        self._name = name
        self._draft = _draft_name()
        self._directory = os.dup(directory)
        try:
            self._fd = os.open(self._draft, _CREATE, 0o600, dir_fd=directory)
        except BaseException:
            os.close(self._directory)
            raise

    @property
    def is_complete(self) -> bool:
        return self._written == self.size

    def write(self, data: memoryview) -> None:
        if not data[0] and not data.tobytes().strip(b"\0"):
            self._written += len(data)  # a hole, as in the sparse file that this may be a copy of
            return
        while data:
            count = os.pwrite(self._fd, data, self._written)
            self._written += count
            data = data[count:]

    def commit(self) -> None:
        os.ftruncate(self._fd, self.size)
        os.fchmod(self._fd, self._mode)
        os.utime(self._fd, ns=(self._mtime_ns, self._mtime_ns))
        os.rename(self._draft, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._close()

    def discard(self) -> None:
        if self._fd >= 0:
            _remove(self._draft, self._directory)
            self._close()

    def _close(self) -> None:
        os.close(self._fd)
        os.close(self._directory)
        self._fd = -1


def _parts(name: bytes) -> list[bytes]:
    """Return the names on the way to an entry."""
    if name.startswith(b"/"):
        raise _Refused("its name is absolute")
    if b"\0" in name:
        raise _Refused("its name contains a NUL")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise _Refused("its name leads upwards through ..")
    return parts


def _draft_name() -> bytes:
    return b".sandboxd-%s.tmp" % os.urandom(8).hex().encode()


def _remove(name: bytes, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return
