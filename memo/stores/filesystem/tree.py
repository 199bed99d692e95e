"""Tree: access to an owner's home, under its lock, with all commits read and the last one finished.

Readers share the lock. A reader that finds something to repair raises `NeedsExclusiveLock` and runs again as a writer.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from memo.errors import Unavailable
from memo.stores.filesystem.change_log import ChangeLog
from memo.stores.filesystem.commit_log import OwnerState, refresh
from memo.stores.filesystem.directory import Directory, closing, disk_errors, locked, open_lock
from memo.stores.filesystem.home import Home, NeedsExclusiveLock
from memo.stores.filesystem.layout import GATE, HIDDEN, LOCK, REMOVED, STAGED, STAGED_MESSAGES, Owner
from memo.stores.options import StoreOptions

R = TypeVar("R")

_STAGED = (STAGED, STAGED_MESSAGES, REMOVED)


class Tree:
    """Owns the open root and the states of the recently used owners."""

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
        """Keep the tree open while this thread uses it."""
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
        """Refuse new users and close after the last one is done: descriptors in use must stay open."""
        with self._left:
            self._is_closed = True
            self._left.wait_for(lambda: self._inside == 0)
        self.log.close()
        self.root.close()

    def read(self, owner: Owner, query: Callable[[Home | None], R], settle_s: float) -> R:
        """Run the query under the shared lock, or under the exclusive one if it must repair something first."""
        try:
            with self._shared(owner, settle_s) as home:
                return query(home)
        except NeedsExclusiveLock:
            with self.exclusive(owner, settle_s) as home:
                return query(home)

    @contextmanager
    def _shared(self, owner: Owner, settle_s: float) -> Iterator[Home | None]:
        """Yield None if the directory does not exist, which means that nothing was ever written there."""
        with ExitStack() as stack:
            directory = self.root.descend(*owner.path)
            if directory is None:
                yield None
                return
            stack.enter_context(directory)
            hidden = directory.child(HIDDEN)
            if hidden is None:
                raise NeedsExclusiveLock  # created by another program; its files must become revisions first
            stack.enter_context(hidden)
            self._take_lock(stack, hidden, exclusive=False)
            state = self._state(owner)
            self._refresh(owner, state, hidden)
            if not state.is_finished or any(hidden.stat(name) for name in _STAGED):
                raise NeedsExclusiveLock  # no writer holds the lock, so a killed one left this
            yield Home(owner, directory, hidden, state, self.log, self.options, False, settle_s)

    @contextmanager
    def exclusive(self, owner: Owner, settle_s: float) -> Iterator[Home]:
        with ExitStack() as stack:
            directory = stack.enter_context(self.root.make_path(*owner.path))
            hidden = stack.enter_context(directory.make_child(HIDDEN))
            self._take_lock(stack, hidden, exclusive=True)
            state = self._state(owner)
            self._refresh(owner, state, hidden)
            home = Home(owner, directory, hidden, state, self.log, self.options, True, settle_s)
            if not state.is_finished:
                home.finish_last_commit()
            for leftover in _STAGED:  # left by a writer that was killed before its commit
                hidden.remove(leftover)
            yield home

    def _take_lock(self, stack: ExitStack, hidden: Directory, *, exclusive: bool) -> None:
        """Take the lock through a gate: a waiting writer holds the gate, so new readers queue behind it.

        Without the gate, overlapping readers could starve a writer.
        """
        with disk_errors(f"lock {hidden.path}"):
            fd = stack.enter_context(closing(open_lock(hidden.fd, LOCK)))
            gate = stack.enter_context(closing(open_lock(hidden.fd, GATE)))
        with locked(gate, hidden.path, exclusive=exclusive, timeout_s=self._lock_timeout_s):
            stack.enter_context(locked(fd, hidden.path, exclusive=exclusive, timeout_s=self._lock_timeout_s))

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
