"""Announcer: publishes one `memo` event for every committed revision, without its text.

A write through the daemon has an author; a change from the store's feed does not. Both arrive here, so that one
revision gives one event.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from memo.changes import Change
from memo.documents import ArtifactKey, Author, DocumentKey
from memo.ids import SessionRef
from sandboxd.events import EventBus, Field
from sandboxd.memory.outcomes import Key

_MOST_REMEMBERED = 4096


class Announcer:
    def __init__(self, events: EventBus) -> None:
        self.events = events
        self._under_way: dict[Key, int] = {}
        self._held: dict[Key, list[Change]] = {}
        self._announced: OrderedDict[tuple[Key, int], None] = OrderedDict()

    def begin(self, key: Key) -> None:
        """Note that a write is under way: the feed's next change of this key may be its own."""
        self._under_way[key] = self._under_way.get(key, 0) + 1

    def end(self, key: Key) -> None:
        left = self._under_way.pop(key) - 1
        if left:
            self._under_way[key] = left
            return
        for change in self._held.pop(key, []):
            self._announce(key, change.revision, None, _what(change))

    def written(self, key: Key, revision: int, author: Author | None, *, what: str = "written") -> None:
        self._announce(key, revision, author, what=what)

    def deleted(self, key: DocumentKey, revision: int, author: Author, moved_to: str | None = None) -> None:
        self._announce(key, revision, author, "deleted", {} if moved_to is None else {"moved_to": moved_to})

    def moved(self, key: DocumentKey, revision: int, author: Author, moved_from: str) -> None:
        self._announce(key, revision, author, "moved", {"moved_from": moved_from})

    def heard(self, change: Change) -> None:
        if change.key in self._under_way:
            self._held.setdefault(change.key, []).append(change)
        else:
            self._announce(change.key, change.revision, None, _what(change))

    def mirror(self, what: str, **fields: Field) -> None:
        self.events.publish("mirror", what=what, **fields)

    def drift(self, ref: SessionRef, path: str, how: str) -> None:
        self.mirror("drift", tenant=ref.tenant, session=ref.session, path=path, how=how)

    def _announce(
        self,
        key: Key,
        revision: int,
        author: Author | None,
        what: str = "written",
        more: Mapping[str, Field] | None = None,
    ) -> None:
        if (key, revision) in self._announced:
            return
        self._announced[key, revision] = None
        if len(self._announced) > _MOST_REMEMBERED:
            self._announced.popitem(last=False)
        fields: dict[str, Field] = {"what": what, **fields_of(key), "revision": revision, **(more or {})}
        if author is not None:
            fields |= {"actor": author.actor, "by_session": author.session, "reason": author.reason}
        self.events.publish("memo", **fields)


def _what(change: Change) -> str:
    return "deleted" if change.deleted else "written"


def fields_of(key: Key) -> dict[str, Field]:
    if isinstance(key, ArtifactKey):
        return {"tenant": key.session.tenant, "session": key.session.session, "artifact": key.tool_call}
    return {"tenant": key.tenant, str(key.scope): key.owner, "name": key.name}
