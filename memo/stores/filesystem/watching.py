"""Watching for outside edits: the kernel's hints, and a scan of everything at the start and every so often.

A hint only says where to look; what is found there is decided under the owner's lock. One thread, owned by the
watcher, joined at close. What goes wrong with one owner is logged and stops nobody else.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import watchfiles

from memo.errors import MemoError
from memo.ids import TenantId
from memo.stores.filesystem import outside, sessions
from memo.stores.filesystem.layout import COMMITS, HIDDEN, STAGED, STAGED_MESSAGES, TENANTS, Owner, document_name
from memo.stores.filesystem.owners import Place, Tree, Unsettled

_log = logging.getLogger("memo.stores.filesystem")

_GROUP_MS = 200
_QUIET_MS = 50
_TICK_MS = 1000
_Fingerprint = tuple[tuple[str, int, int, int, int], ...]


class Watcher:
    def __init__(self, path: Path, tree: Tree, *, rescan_s: float, settle_s: float) -> None:
        self._tenants = path / TENANTS
        self._tree = tree
        self._rescan_s = rescan_s
        self._settle_s = settle_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memo-outside-edits", daemon=True)
        self._checked: dict[Owner, _Fingerprint] = {}
        self._complaints: dict[Owner, str] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        """Look wherever something happened, and everywhere when it is time."""
        self._scan(self._everybody())
        hints = watchfiles.watch(
            self._tenants,
            watch_filter=None,
            debounce=_GROUP_MS,
            step=_QUIET_MS,
            stop_event=self._stop,
            rust_timeout=_TICK_MS,
            yield_on_timeout=True,
            raise_interrupt=False,
        )
        try:
            self._follow(hints)
        except (OSError, RuntimeError) as error:  # no inotify, or no watch left in it
            _log.warning("cannot watch %s, looking every %g s instead: %s", self._tenants, self._rescan_s, error)
            while not self._stop.wait(self._rescan_s):
                self._scan(self._everybody())

    def _follow(self, hints: Iterable[set[tuple[watchfiles.Change, str]]]) -> None:
        next_scan = time.monotonic()  # at the first tick: the watch began after the scan that the thread began with
        lately: set[Owner] = set()
        for changes in hints:
            touched = self._touched({path for _, path in changes})
            # Twice, now and at the next tick: a new directory is there a moment before the kernel watches it.
            self._scan(sorted(touched | lately))
            lately = touched
            if time.monotonic() >= next_scan:
                self._scan(self._everybody())
                next_scan = time.monotonic() + self._rescan_s

    def _everybody(self, tenant: TenantId | None = None) -> list[Owner]:
        try:
            return list(sessions.owners_of(self._tree.root, tenant))
        except MemoError as error:
            _log.warning("cannot look for outside edits: %s", error)
            return []

    def _touched(self, paths: Iterable[str]) -> set[Owner]:
        """Return the owners of what is at the paths, or below them."""
        found: set[Owner] = set()
        for path in paths:
            tenant, *rest = Path(path).relative_to(self._tenants).parts or ("",)
            if len(rest) < 2:
                if Owner.at(tenant, "sessions", "any") is not None:
                    found.update(self._everybody(TenantId(tenant)))
                continue
            owner = Owner.at(tenant, rest[0], rest[1])
            if owner is not None:
                found.add(owner)
        return found

    def _scan(self, owners: list[Owner]) -> None:
        while owners and not self._stop.is_set():
            unsettled = [owner for owner in owners if not self._stop.is_set() and not self._check(owner)]
            owners = unsettled
            if owners:
                self._stop.wait(self._settle_s)  # an editor needs a moment, and nothing tells when it is done

    def _check(self, owner: Owner) -> bool:
        """Turn what was edited into revisions. False if somebody is still at it."""
        try:
            before = self._fingerprint(owner)
            if before is not None and self._checked.get(owner) == before:
                return True
            self._tree.read(owner, self._reconcile_all, self._settle_s)
        except Unsettled:
            return False
        except MemoError as error:
            self._complain(owner, str(error))
            return True
        self._complaints.pop(owner, None)
        if before is not None and before == self._fingerprint(owner) and _is_old(before, self._settle_s):
            self._checked[owner] = before
        return True

    def _reconcile_all(self, place: Place | None) -> None:
        if place is not None:
            for name in outside.document_files(place):
                outside.reconcile(place, name)

    def _complain(self, owner: Owner, complaint: str) -> None:
        if self._complaints.get(owner) != complaint:  # every scan finds it again, and once is enough
            self._complaints[owner] = complaint
            _log.warning("cannot take over outside edits of %s: %s", owner, complaint)

    def _fingerprint(self, owner: Owner) -> _Fingerprint | None:
        """Return what changes whenever a document's file or the commits do, without opening either."""
        directory = self._tree.root.descend(*owner.path)
        if directory is None:
            return None
        with directory:
            found = [(n, directory.stat(n)) for n in directory.names() if document_name(n) is not None]
            hidden = directory.child(HIDDEN)
            if hidden is None:
                return None
            with hidden:
                found += [(name, hidden.stat(name)) for name in (COMMITS, STAGED, STAGED_MESSAGES)]
        return tuple((n, *_signature(status)) for n, status in found if status is not None)


def _signature(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _is_old(fingerprint: _Fingerprint, margin_s: float) -> bool:
    """A file changed just now may change again within the same tick of its clock, and look the same."""
    return all(time.time_ns() - changed_ns > margin_s * 1e9 for *_, changed_ns in fingerprint)
