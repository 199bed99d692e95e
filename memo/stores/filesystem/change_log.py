"""ChangeLog: one durable line for every finished commit of the store, in order. The change feed reads it.

The number of a change is its cursor. Lines are found by bisection, so resuming is cheap however long the log is. A
commit that is not in the log was interrupted; it is finished before the owner's next commit.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from memo.changes import Change
from memo.documents import ArtifactKey, DocumentKey
from memo.errors import Corrupt, InvalidKey, Unavailable
from memo.ids import SessionRef, ToolCallId
from memo.stores.filesystem.directory import Directory, append_lines, disk_errors, end_of_lines, lines_backwards, locked
from memo.stores.filesystem.layout import Owner
from memo.stores.timestamps import from_micros

CHANGES = "changes.jsonl"
_BLOCK = 65_536


@dataclass(frozen=True, slots=True)
class Announcement:
    """One change of one commit. `name` is an artifact's id if `artifact` is set, else a document's name."""

    name: str
    revision: int
    sha256: str
    at_micros: int
    artifact: bool = False
    deleted: bool = False


class ChangeLog:
    """Owns the open log. Reading takes no lock, because only complete lines count."""

    def __init__(self, directory: Directory, notify: Callable[[], None]) -> None:
        self._place = directory.where(CHANGES)
        with disk_errors(f"open {self._place}"):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._fd = os.open(CHANGES, flags, 0o600, dir_fd=directory.fd)
            os.fsync(directory.fd)
        self._notify = notify
        self._turn = threading.Lock()
        self._found = (0, 0)
        """A cursor and the end of its line: where the last reader stopped and the next one probably continues."""

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def end(self) -> int:
        with disk_errors(f"read {self._place}"):
            return end_of_lines(self._fd)

    def publish(self, owner: Owner, number: int, announcements: list[Announcement]) -> None:
        """Append the changes of a finished commit. After this, the feed yields them."""
        of_commit = {"tenant": owner.tenant, "scope": str(owner.scope), "owner": owner.owner, "commit": number}
        # The threads of this process share the open file and therefore its flock, so they also need their own lock.
        with disk_errors(f"write {self._place}"), self._turn, locked(self._fd, self._place, exclusive=True):
            end = end_of_lines(self._fd)
            cursor = self._last_cursor(end)
            records = [
                {"cursor": cursor + index, **of_commit, **_fields(announcement)}
                for index, announcement in enumerate(announcements, start=1)
            ]
            lines = [json.dumps(r, separators=(",", ":")) for r in records or [{"cursor": cursor, **of_commit}]]
            append_lines(self._fd, "".join(f"{line}\n" for line in lines).encode(), end)
        self._notify()

    def is_published(self, owner: Owner, number: int, since_byte: int) -> bool:
        """Return whether a commit is in the log; `since_byte` was the end of the log before it."""
        wanted = (owner.tenant, str(owner.scope), owner.owner, number)
        return any(
            (r.get("tenant"), r.get("scope"), r.get("owner"), r.get("commit")) == wanted
            for _, r in self._records(since_byte)
        )

    def read(self, since: int, limit: int) -> list[Change]:
        found: list[Change] = []
        for end, record in self._records(self._find(since)):
            if "revision" in record and record["cursor"] > since:
                found.append(self._change(end, record))
                if len(found) == limit:
                    break
        return found

    def last(self) -> int:
        with disk_errors(f"read {self._place}"):
            return self._last_cursor(end_of_lines(self._fd))

    def _last_cursor(self, end: int) -> int:
        line = next(lines_backwards(self._fd, end), None)
        return 0 if line is None else int(self._parse(line, end)["cursor"])

    def _find(self, cursor: int) -> int:
        """Return the start of a line shortly before, or at, the first change after the cursor."""
        known, low = self._found
        if known == cursor:
            return low
        low, high = (low, self.end()) if known < cursor else (0, low)
        while high - low > _BLOCK:
            middle = (low + high) // 2
            end, record = next(self._records(middle, is_boundary=False), (high, None))
            if end >= high or record is None:
                break
            low, high = (end, high) if record["cursor"] <= cursor else (low, middle)
        return low

    def _records(self, since_byte: int, *, is_boundary: bool = True) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield every record from a byte onwards, with its end; inside a line, start at the next one."""
        if self._fd < 0:
            raise Unavailable("cannot use this store: it is closed")
        place, rest = since_byte, b""
        with disk_errors(f"read {self._place}"):
            while block := os.pread(self._fd, _BLOCK, place + len(rest)):
                *lines, rest = (rest + block).split(b"\n")
                for line in lines:
                    place += len(line) + 1
                    if is_boundary:
                        yield place, self._parse(line, place)
                    is_boundary = True

    def _parse(self, line: bytes, end: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("cursor"), int):
            raise Corrupt(f"cannot read {self._place}: the line that ends at byte {end} is damaged")
        return record

    def _change(self, end: int, record: dict[str, Any]) -> Change:
        try:
            key: DocumentKey | ArtifactKey
            if "artifact" in record:
                key = ArtifactKey(SessionRef.of(record["tenant"], record["owner"]), ToolCallId(record["artifact"]))
            else:
                key = DocumentKey.of(record["tenant"], record["owner"], record["scope"], record["document"])
            change = Change(
                record["cursor"],
                key,
                int(record["revision"]),
                str(record["sha256"]),
                from_micros(record["at"]),
                bool(record.get("deleted", False)),
            )
        except (KeyError, TypeError, ValueError, InvalidKey):
            raise Corrupt(f"cannot read {self._place}: the line that ends at byte {end} is damaged") from None
        self._found = (change.cursor, end)  # one tuple, so that another thread sees either the old pair or the new one
        return change


def _fields(change: Announcement) -> dict[str, Any]:
    return {
        ("artifact" if change.artifact else "document"): change.name,
        "revision": change.revision,
        "sha256": change.sha256,
        "at": change.at_micros,
        **({"deleted": True} if change.deleted else {}),
    }
