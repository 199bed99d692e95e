"""Access to one owner's directory: under its lock, with its commits folded, and with nothing left unfinished.

Readers share the lock. A reader that finds something to mend raises `Stale`, and comes again as a writer. Who gets
a place may trust it until the lock is let go.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from memo.errors import Unavailable
from memo.stores.filesystem import finishing
from memo.stores.filesystem.changelog import ChangeLog
from memo.stores.filesystem.commits import OwnerState, refresh
from memo.stores.filesystem.disk import Directory, closing, disk_errors
from memo.stores.filesystem.layout import GATE, HIDDEN, LOCK, STAGED, STAGED_MESSAGES, Owner
from memo.stores.filesystem.locks import locked, open_lock
from memo.stores.options import StoreOptions

R = TypeVar("R")

_STAGED = (STAGED, STAGED_MESSAGES)


class Stale(Exception):
    """A reader found what only a writer can mend."""


class Unsettled(Exception):
    """Somebody outside is writing this file right now; look again in a moment."""


@dataclass(frozen=True, slots=True)
class Place:
    """An owner's directory while its lock is held. `hidden` holds its commits and texts."""

    owner: Owner
    directory: Directory
    hidden: Directory
    state: OwnerState
    log: ChangeLog
    options: StoreOptions
    is_exclusive: bool
    settle_s: float
    """How long a file must have been left alone to be taken for complete."""


class Tree:
    """Owns the open root and the folded states of the owners used lately."""

    STATES = 1024

    def __init__(self, root: Directory, log: ChangeLog, options: StoreOptions, lock_timeout_s: float) -> None:
        self.root = root
        self.log = log
        self.options = options
        self._lock_timeout_s = lock_timeout_s
        self._states: OrderedDict[Owner, OwnerState] = OrderedDict()
        self._lock = threading.Lock()
        self._left = threading.Condition()
        self._inside = 0
        self._is_closed = False

    @contextmanager
    def in_use(self) -> Iterator[Tree]:
        """Keep the tree open for as long as this thread works in it."""
        with self._left:
            if self._is_closed:
                raise Unavailable("cannot use this store: it is closed")
            self._inside += 1
        try:
            yield self
        finally:
            with self._left:
                self._inside -= 1
                self._left.notify_all()

    def close(self) -> None:
        """Let nobody in any more, and close when the last one has left: a descriptor must not be closed under them."""
        with self._left:
            self._is_closed = True
            self._left.wait_for(lambda: self._inside == 0)
        self.log.close()
        self.root.close()

    def read(self, owner: Owner, query: Callable[[Place | None], R], settle_s: float) -> R:
        """Run the query under the shared lock, or if it must mend something first, under the exclusive one."""
        try:
            with self._shared(owner, settle_s) as place:
                return query(place)
        except Stale:
            with self.exclusive(owner, settle_s) as place:
                return query(place)

    @contextmanager
    def _shared(self, owner: Owner, settle_s: float) -> Iterator[Place | None]:
        """None if there is no such directory: then nothing was ever written there."""
        with ExitStack() as stack:
            directory = self.root.descend(*owner.path)
            if directory is None:
                yield None
                return
            stack.enter_context(directory)
            hidden = directory.child(HIDDEN)
            if hidden is None:
                raise Stale  # made by hand; somebody must look at what is in it
            stack.enter_context(hidden)
            self._take_lock(stack, hidden, exclusive=False)
            state = self._state(owner)
            self._refresh(owner, state, hidden)
            if not state.is_finished or any(hidden.stat(name) for name in _STAGED):
                raise Stale  # no writer is at work, so this is what a killed one left
            yield Place(owner, directory, hidden, state, self.log, self.options, False, settle_s)

    @contextmanager
    def exclusive(self, owner: Owner, settle_s: float) -> Iterator[Place]:
        with ExitStack() as stack:
            directory = stack.enter_context(self.root.make_path(*owner.path))
            hidden = stack.enter_context(directory.make_child(HIDDEN))
            self._take_lock(stack, hidden, exclusive=True)
            state = self._state(owner)
            self._refresh(owner, state, hidden)
            place = Place(owner, directory, hidden, state, self.log, self.options, True, settle_s)
            if not state.is_finished:
                finishing.finish_again(place)
            for leftover in _STAGED:  # of a writer that was killed before its commit
                hidden.remove(leftover)
            yield place

    def _take_lock(self, stack: ExitStack, hidden: Directory, *, exclusive: bool) -> None:
        """Take the lock, through a gate: a writer waits for the readers inside, and new ones wait for the writer.

        Without it, readers that overlap would keep a writer out for as long as they like.
        """
        with disk_errors(f"lock {hidden.place}"):
            fd = stack.enter_context(closing(open_lock(hidden.fd, LOCK)))
            gate = stack.enter_context(closing(open_lock(hidden.fd, GATE)))
        with locked(gate, hidden.place, exclusive=exclusive, timeout_s=self._lock_timeout_s):
            stack.enter_context(locked(fd, hidden.place, exclusive=exclusive, timeout_s=self._lock_timeout_s))

    def _refresh(self, owner: Owner, state: OwnerState, hidden: Directory) -> None:
        with state.refreshing:
            if refresh(state, hidden) and state.last is not None:
                state.is_finished = self.log.is_published(owner, state.last.number, state.last.log_end)

    def _state(self, owner: Owner) -> OwnerState:
        with self._lock:
            state = self._states.setdefault(owner, OwnerState())
            self._states.move_to_end(owner)
            if len(self._states) > self.STATES:
                self._states.popitem(last=False)
            return state
