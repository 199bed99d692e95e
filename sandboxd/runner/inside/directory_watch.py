"""What changes in a directory or a tree, as events about paths. It reads the kernel's queue and the directories.

New directories are watched as they appear, and what was created in them before is reported too. The number of watched
directories is bounded, and so is what is kept between two reads. No link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import deque

from . import inotify, paths, wire
from .failure import Failure, explain
from .inotify import Inotify

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

MAX_DIRECTORIES = 8_192
MAX_PATH_BYTES = 4_095
MAX_BATCH_BYTES = 16_384
"""The bound of the events of one step, soft by one event."""
MAX_ANNOUNCED = 4_096
"""How many paths found in new directories are remembered, because the kernel reports some of them too."""
STEP_S = 0.02
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DRAFT = (b".sandboxd-", b".tmp")
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class _Directory:
    """A watched directory: its watch, and its place in the tree."""

    __slots__ = ("children", "name", "number", "parent")

    def __init__(self, number: int, parent: _Directory | None, name: bytes) -> None:
        self.number = number
        self.parent = parent
        self.name = name
        self.children: dict[bytes, _Directory] = {}


class DirectoryWatch:
    """Call `step` until everything is watched, and again whenever the queue is readable."""

    def __init__(self, path: str, recursive: bool) -> None:
        self._path = path
        self._is_recursive = recursive
        self._queue = Inotify()
        self._is_open = True
        self._known: dict[int, _Directory] = {}
        self._unlisted: deque[tuple[_Directory, bool]] = deque()
        """Directories whose entries are not read yet, and whether to report them: those of a new directory are new."""
        self._listing: Generator[None, None, None] | None = None
        self._announced: set[bytes] = set()
        self._rest: deque[tuple[int, int, bytes]] = deque()
        """Events that were read from the queue and do not fit into this step."""
        self._out = bytearray()
        self._last: dict[bytes, int] = {}
        self.is_ready = False
        """Whether everything is watched that existed at the beginning."""
        self.is_over = False
        """Whether the watched directory itself was removed or moved."""
        try:
            self._top = self._add_top()
        except BaseException:
            self.close()
            raise

    @property
    def fd(self) -> int:
        return self._queue.fd

    def close(self) -> None:
        """Close every descriptor. Safe to call again."""
        if self._listing is not None:
            self._listing.close()
        if self._is_open:
            self._is_open = False
            self._queue.close()

    def step(self) -> tuple[bytes, bool]:
        """Work for a short time; return packed events, and whether there is more to do without the kernel's queue."""
        until = time.monotonic() + STEP_S
        self._out.clear()
        self._last.clear()
        while not self.is_over and len(self._out) < MAX_BATCH_BYTES and time.monotonic() < until:
            if self._listing is not None or self._unlisted:
                self._list_next()
            elif not self.is_ready:
                self.is_ready = True
                self._out += wire.WATCHED.pack(wire.READY, 0, 0)
            elif self._rest:
                self._take(*self._rest.popleft())
            else:
                data = self._queue.read()
                if not data:
                    self._announced.clear()
                    break
                self._rest.extend(inotify.parse(data))
        has_more = bool(self._listing or self._unlisted or self._rest or not self.is_ready)
        return bytes(self._out), has_more and not self.is_over

    def _add_top(self) -> _Directory:
        # It is not held open: the kernel reports the removal of a directory only when it is closed everywhere.
        named = paths.open_any(self._path, "watch")
        try:
            status = os.fstat(named)
            if not stat.S_ISDIR(status.st_mode):
                why = "it is not a directory; watch the one it is in"
                raise Failure("NotADirectory", f"cannot watch {self._path}: {why}")
            self._identity = (status.st_dev, status.st_ino)
            top = self._add(named, None, b"")
        except OSError as error:
            raise self._refuse(error) from None
        finally:
            os.close(named)
        self._unlisted.append((top, False))
        return top

    def _take(self, number: int, mask: int, name: bytes) -> None:
        if mask & inotify.OVERFLOW:
            self._lose_events()
            return
        directory = self._known.get(number)
        if directory is None:
            return  # it is not watched any more
        if not name:
            self._take_own(directory, mask)
            return
        if name.startswith(_DRAFT[0]) and name.endswith(_DRAFT[1]):
            return  # a file that a call is writing, until it gets its name
        is_directory = bool(mask & inotify.IS_DIRECTORY)
        if mask & (inotify.MOVED_FROM | inotify.DELETE):
            if is_directory:
                self._forget(directory.children.get(name))
            self._announced.discard(self._path_of(directory, name))
            self._report(wire.REMOVED, directory, name, stat.S_IFDIR if is_directory else 0)
        elif mask & (inotify.MOVED_TO | inotify.CREATE):
            self._appear(directory, name, is_directory)
        else:
            self._report(wire.CHANGED, directory, name, self._mode_of(directory, name, is_directory))

    def _take_own(self, directory: _Directory, mask: int) -> None:
        """Handle an event about a watched directory itself. Its parent reports the rest of what happens to it."""
        if directory is self._top and mask & (inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT):
            self._out += wire.WATCHED.pack(wire.REMOVED, wire.TYPES.index(stat.S_IFDIR), 0)
            self.is_over = True
        elif mask & inotify.IGNORED:
            self._forget(directory)

    def _appear(self, directory: _Directory, name: bytes, is_directory: bool) -> None:
        path = self._path_of(directory, name)
        if path in self._announced:
            return
        self._report(wire.CREATED, directory, name, self._mode_of(directory, name, is_directory))
        if is_directory and self._is_recursive:
            self._watch_child(directory, name, is_new=True)

    def _watch_child(self, parent: _Directory, name: bytes, *, is_new: bool) -> None:
        """Watch a directory and queue it for listing; with `is_new`, its entries are reported."""
        try:
            fd = self._open(parent, name)
        except OSError as error:
            self._miss(error)
            return
        try:
            if len(self._path_of(parent, name)) > MAX_PATH_BYTES:
                raise OSError(errno.ENAMETOOLONG, "")
            known = len(self._known)
            child = self._add(fd, parent, name)
            if is_new or len(self._known) > known:
                self._unlisted.append((child, is_new))
        except OSError as error:
            self._miss(error)
        finally:
            os.close(fd)

    def _miss(self, error: OSError) -> None:
        """Handle a directory that cannot be watched. Unless it is gone, what happens in it will not be reported."""
        if error.errno in _GONE:
            return
        if not self.is_ready:
            raise self._refuse(error) from None
        self._report_loss()

    def _add(self, fd: int, parent: _Directory | None, name: bytes) -> _Directory:
        if len(self._known) >= MAX_DIRECTORIES:
            raise OSError(errno.ENOSPC, "")
        number = self._queue.add(fd)
        child = self._known.get(number)
        if child is None:
            child = self._known[number] = _Directory(number, parent, name)
        elif child.parent is not None and parent is not None:  # it was moved, which the queue says later
            if self._is_below(parent, child):
                raise OSError(errno.ENOENT, "")  # moved again since its parent was opened
            child.parent.children.pop(child.name, None)
            child.parent, child.name = parent, name
        if parent is not None:
            parent.children[name] = child
        return child

    def _is_below(self, directory: _Directory, other: _Directory) -> bool:
        place: _Directory | None = directory
        while place is not None and place is not other:
            place = place.parent
        return place is other

    def _forget(self, directory: _Directory | None) -> None:
        """Stop watching a directory and everything below it."""
        if directory is None:
            return
        if directory.parent is not None and directory.parent.children.get(directory.name) is directory:
            del directory.parent.children[directory.name]
        doomed = [directory]
        while doomed:
            one = doomed.pop()
            doomed.extend(one.children.values())
            one.children.clear()
            if self._known.pop(one.number, None) is not None:
                self._queue.remove(one.number)

    def _lose_events(self) -> None:
        """Report that events are lost, and watch the directories whose creation was among them."""
        self._report_loss()
        if self._listing is not None:
            self._listing.close()
            self._listing = None
        self._unlisted.clear()
        self._unlisted.extend((directory, False) for directory in self._known.values())

    def _list_next(self) -> None:
        if self._listing is None:
            directory, is_new = self._unlisted.popleft()
            self._listing = self._list(directory, is_new)
        try:
            next(self._listing)
        except StopIteration:
            self._listing = None

    def _list(self, directory: _Directory, is_new: bool) -> Generator[None, None, None]:
        """Read the entries of a directory: report them if it is new, and watch the directories among them."""
        if not self._is_recursive:
            return
        try:
            fd = self._open(directory)
        except OSError as error:
            if error.errno in _GONE:
                self._forget(directory)
            self._miss(error)
            return
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    name = os.fsencode(entry.name)
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if is_new:
                        self._announce(directory, name, is_directory)
                    if is_directory:
                        self._watch_child(directory, name, is_new=is_new)
                    yield
        except OSError as error:
            self._miss(error)
        finally:
            os.close(fd)

    def _announce(self, directory: _Directory, name: bytes, is_directory: bool) -> None:
        if name.startswith(_DRAFT[0]) and name.endswith(_DRAFT[1]):
            return
        if len(self._announced) < MAX_ANNOUNCED:
            self._announced.add(self._path_of(directory, name))
        self._report(wire.CREATED, directory, name, self._mode_of(directory, name, is_directory))

    def _report(self, kind: int, directory: _Directory, name: bytes, mode: int) -> None:
        """Add an event, unless the last one about this path says the same: changes are merged, also into a creation."""
        path = self._path_of(directory, name)
        last = self._last.get(path)
        if kind == wire.CHANGED and last in (wire.CREATED, wire.CHANGED):
            return
        self._last[path] = kind
        form = stat.S_IFMT(mode)
        number = wire.TYPES.index(form) if form in wire.TYPES else len(wire.TYPES)
        self._out += wire.WATCHED.pack(kind, number, len(path)) + path

    def _report_loss(self) -> None:
        if self._last.get(b"") != wire.OVERFLOW:  # once in each step
            self._last[b""] = wire.OVERFLOW
            self._out += wire.WATCHED.pack(wire.OVERFLOW, 0, 0)

    def _mode_of(self, directory: _Directory, name: bytes, is_directory: bool) -> int:
        """Return the type of an entry; 0 if it is gone."""
        if is_directory:
            return stat.S_IFDIR
        try:
            fd = self._open(directory)
        except OSError:
            return 0
        try:
            return os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        except OSError:
            return 0
        finally:
            os.close(fd)

    def _open(self, directory: _Directory, name: bytes = b"") -> int:
        """Open a directory, or one in it, by the names from the top, none of which may be a link."""
        names = [part for part in (name,) if part]
        while directory.parent is not None:
            names.append(directory.name)
            directory = directory.parent
        fd = self._open_top()
        for part in [*reversed(names), b"."]:  # the last one turns a top that is only named into a readable one
            try:
                deeper = os.open(part, _DIRECTORY, dir_fd=fd)
            finally:
                os.close(fd)
            fd = deeper
        return fd

    def _open_top(self) -> int:
        try:
            fd = paths.open_any(self._path, "watch")
        except Failure:
            raise FileNotFoundError(errno.ENOENT, "") from None
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != self._identity:
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, "")
        return fd

    def _path_of(self, directory: _Directory, name: bytes) -> bytes:
        parts = [name]
        while directory.parent is not None:
            parts.append(directory.name)
            directory = directory.parent
        return b"/".join(reversed(parts))

    def _refuse(self, error: OSError) -> Failure:
        if error.errno == errno.ENOSPC:
            why = f"it has more directories than can be watched ({MAX_DIRECTORIES} at most); watch a smaller one"
            return Failure("LimitReached", f"cannot watch {self._path}: {why}")
        return explain(error, "watch", self._path)
