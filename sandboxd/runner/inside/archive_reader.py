"""A tar of a file or of a directory with everything below it, made piece by piece. Follows no link.

Names are relative to the directory. Sockets, FIFOs and devices are left out, and so is the memo mirror in an archive of
the workspace. Memory is bounded, however large the tree is.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from . import paths
from .descent import Descent
from .failure import Failure, explain
from .tar_stream import DIRECTORY, END, FILE, HARD_LINK, LINK, MAX_NAME_BYTES, TarEntry, pack_header, padding_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

STEP_S = 0.02
BLOCK_BYTES = 65_536
MAX_LINKED_BYTES = 1_048_576
"""How many bytes of names are kept to recognise hard links. A further link is a file of its own in the archive."""
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NAMED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class ArchiveReader:
    """Call `read` until it reports the end. `close` releases the descriptors at any time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._buffer = bytearray()
        self._linked: dict[tuple[int, int], bytes] = {}
        self._linked_room = MAX_LINKED_BYTES
        self._prefix = b""
        """The current directory's path below the top, with a slash at its end."""
        self._descent: Descent | None = None
        self._only = -1
        named = paths.open_any(path, "archive")
        try:
            status = os.fstat(named)
            self._real = paths.real_path(named)
            self._excludes = not paths.is_read_only(self._real)
            if stat.S_ISDIR(status.st_mode):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                self._descent = Descent(os.open(b"/proc/self/fd/%d" % named, flags), os.O_RDONLY)
                self._pieces = self._walk(self._descent)
            else:
                paths.check_regular(status, "archive", path)
                self._only, named = named, -1
                self._pieces = self._only_file(status, os.path.basename(self._real))
        except OSError as error:
            raise explain(error, "archive", path) from None
        finally:
            if named >= 0:
                os.close(named)

    def read(self, size: int) -> tuple[bytes, bool]:
        """Return the next bytes, at most `size`, and whether they are the last. May return none after a while."""
        until = time.monotonic() + STEP_S
        is_over = False
        try:
            while len(self._buffer) < size and not is_over:
                piece = next(self._pieces, None)
                if piece is None:
                    is_over = True
                else:
                    self._buffer += piece
                if time.monotonic() > until:
                    break
        except OSError as error:
            raise explain(error, "archive", self._path) from None
        piece = bytes(self._buffer[:size])
        del self._buffer[:size]
        return piece, is_over and not self._buffer

    def close(self) -> None:
        """Close every descriptor. Safe to call again."""
        self._pieces.close()
        if self._descent is not None:
            self._descent.close()
        if self._only >= 0:
            os.close(self._only)
            self._only = -1

    def _only_file(self, status: os.stat_result, name: bytes) -> Generator[bytes, None, None]:
        yield from self._regular(self._only, status, name)
        yield END

    def _walk(self, descent: Descent) -> Generator[bytes, None, None]:
        while True:
            name = descent.current.next_name()
            if name is not None:
                yield from self._entry(descent, name)
            elif descent.depth:
                descent.leave()
                self._prefix = b"".join(part + b"/" for part in descent.names())
                yield b""
            else:
                break
        yield END

    def _entry(self, descent: Descent, name: bytes) -> Iterator[bytes]:
        relative = self._prefix + name
        try:
            named = os.open(name, _NAMED, dir_fd=descent.current.fd)
        except FileNotFoundError:
            return  # removed since it was listed
        try:
            if len(relative) > MAX_NAME_BYTES:
                why = f"a path below it is longer than {MAX_NAME_BYTES} bytes; archive a directory further down"
                raise Failure("InvalidRequest", f"cannot archive {self._path}: {why}")
            status = os.fstat(named)
            if stat.S_ISREG(status.st_mode):
                yield from self._regular(named, status, relative)
            elif stat.S_ISLNK(status.st_mode):
                link = os.readlink(b"", dir_fd=named)
                yield pack_header(TarEntry(LINK, relative, 0o777, status.st_mtime_ns, link=link))
            elif stat.S_ISDIR(status.st_mode) and not self._is_excluded(relative):
                yield pack_header(TarEntry(DIRECTORY, relative, stat.S_IMODE(status.st_mode), status.st_mtime_ns))
                self._enter(descent, name)
            else:
                yield b""  # counts as a piece of work
        except OSError as error:
            raise explain(error, "archive", f"{self._path}/{relative.decode('utf-8', 'surrogateescape')}") from None
        finally:
            os.close(named)

    def _is_excluded(self, relative: bytes) -> bool:
        return self._excludes and paths.is_read_only(self._real + b"/" + relative)

    def _enter(self, descent: Descent, name: bytes) -> None:
        try:
            descent.enter(name)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return  # removed or replaced since it was listed
            raise
        self._prefix += name + b"/"

    def _regular(self, named: int, status: os.stat_result, name: bytes) -> Iterator[bytes]:
        mode, mtime_ns = stat.S_IMODE(status.st_mode), status.st_mtime_ns
        if status.st_nlink > 1:
            first = self._linked.get((status.st_dev, status.st_ino))
            if first is not None:
                yield pack_header(TarEntry(HARD_LINK, name, mode, mtime_ns, link=first))
                return
            if len(name) <= self._linked_room:
                self._linked_room -= len(name)
                self._linked[status.st_dev, status.st_ino] = name
        fd = os.open(b"/proc/self/fd/%d" % named, _READ)
        try:
            left = os.fstat(fd).st_size
            yield pack_header(TarEntry(FILE, name, mode, mtime_ns, left))
            padding = padding_of(left)
            while left:
                piece = os.read(fd, min(left, BLOCK_BYTES))
                if not piece:
                    shown = name.decode("utf-8", "surrogateescape")
                    why = "it became shorter while it was read; try again when nothing writes to it"
                    raise Failure("InvalidRequest", f"cannot archive {self._path}: {shown}: {why}")
                left -= len(piece)
                yield piece
            yield padding
        finally:
            os.close(fd)
