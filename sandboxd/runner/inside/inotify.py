"""The kernel's inotify: one queue of changes in directories. It knows nothing of paths or calls."""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from .failure import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF = 0x400, 0x800
UNMOUNT, OVERFLOW, IGNORED = 0x2000, 0x4000, 0x8000
IS_DIRECTORY = 0x4000_0000
_ONLY_DIRECTORIES, _EXCLUDE_UNLINKED = 0x100_0000, 0x400_0000
_WATCHED = (
    MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF
    | _ONLY_DIRECTORIES | _EXCLUDE_UNLINKED
)  # fmt: skip
READ_BYTES = 65_536
_EVENT = struct.Struct("=iIII")  # watch, mask, cookie, bytes of the name that follows
_libc = ctypes.CDLL(None, use_errno=True)


class Inotify:
    def __init__(self) -> None:
        self.fd = int(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        if self.fd < 0:
            error = ctypes.get_errno()
            if error in (errno.EMFILE, errno.ENFILE):
                why = "this user has no inotify instance left; raise fs.inotify.max_user_instances on the host"
                raise Failure("LimitReached", f"cannot watch: {why}")
            raise OSError(error, os.strerror(error))

    def add(self, directory: int) -> int:
        """Watch a directory by its descriptor, and return the number of the watch: the same one if it is known."""
        number = int(_libc.inotify_add_watch(self.fd, b"/proc/self/fd/%d" % directory, _WATCHED))
        if number < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
        return number

    def remove(self, number: int) -> None:
        _libc.inotify_rm_watch(self.fd, number)  # fails only if the watch has just ended by itself

    def read(self) -> bytes:
        """Return queued events; nothing if there are none."""
        try:
            return os.read(self.fd, READ_BYTES)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        os.close(self.fd)


def parse(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the watch, mask and name of every event that was read."""
    start = 0
    while start < len(data):
        number, mask, _cookie, length = _EVENT.unpack_from(data, start)
        start += _EVENT.size
        yield number, mask, data[start : start + length].rstrip(b"\0")
        start += length
