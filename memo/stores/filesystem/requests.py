"""Which requests a session has committed, so that a repeated turn is one turn. Read once, then only what is new.

A cache of session.jsonl; it decides nothing that the file does not say.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from memo.stores.filesystem.layout import SESSION, Owner
from memo.stores.filesystem.owners import Place
from memo.stores.filesystem.session_log import requests_after


class RequestIndex:
    SESSIONS = 256

    def __init__(self) -> None:
        self._known: OrderedDict[Owner, tuple[int, int, set[str]]] = OrderedDict()
        self._lock = threading.Lock()

    def is_first(self, place: Place, request: str) -> bool:
        """Say whether nobody has committed the request. The place is locked, so the answer stays true."""
        found = place.directory.stat(SESSION)
        inode = found.st_ino if found else 0
        with self._lock:
            known_inode, end, requests = self._known.pop(place.owner, (inode, 0, set()))
            if known_inode != inode:
                end, requests = 0, set()
            new, end = requests_after(place.directory, end)
            requests |= new
            self._known[place.owner] = (inode, end, requests)
            if len(self._known) > self.SESSIONS:
                self._known.popitem(last=False)
            return request not in requests
