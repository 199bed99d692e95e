"""Announcer: publishes one `memo` event for every committed revision, without its text.

A write through the daemon has an author; a change from the store's feed does not. Both arrive here, so that one
revision gives one event.
"""

from __future__ import annotations

from collections import OrderedDict

from memo.changes import Change
from memo.documents import ArtifactKey, Author
from memo.ids import SessionRef
from sandboxd.events import EventBus, Field
from sandboxd.memory.outcomes import Key

_MOST_REMEMBERED = 4096


class Announcer:
    def __init__(self, events: EventBus) -> None:
        self.events = events
        self._under_way: dict[Key, int] = {}
        self._held: dict[Key, list[int]] = {}
        self._announced: OrderedDict[tuple[Key, int], None] = OrderedDict()

    def begin(self, key: Key) -> None:
        """Note that a write is under way: the feed's next change of this key may be its own."""
        self._under_way[key] = self._under_way.get(key, 0) + 1

    def end(self, key: Key) -> None:
        left = self._under_way.pop(key) - 1
        if left:
            self._under_way[key] = left
            return
        for revision in self._held.pop(key, []):
            self._announce(key, revision, None)

    def written(self, key: Key, revision: int, author: Author | None, *, what: str = "written") -> None:
        self._announce(key, revision, author, what=what)

    def heard(self, change: Change) -> None:
        if change.key in self._under_way:
            self._held.setdefault(change.key, []).append(change.revision)
        else:
            self._announce(change.key, change.revision, None)

    def mirror(self, what: str, **fields: Field) -> None:
        self.events.publish("mirror", what=what, **fields)

    def drift(self, ref: SessionRef, path: str, how: str) -> None:
        self.mirror("drift", tenant=ref.tenant, session=ref.session, path=path, how=how)

    def _announce(self, key: Key, revision: int, author: Author | None, what: str = "written") -> None:
        if (key, revision) in self._announced:
            return
        self._announced[key, revision] = None
        if len(self._announced) > _MOST_REMEMBERED:
            self._announced.popitem(last=False)
        fields: dict[str, Field] = {"what": what, **fields_of(key), "revision": revision}
        if author is not None:
            fields |= {"actor": author.actor, "by_session": author.session, "reason": author.reason}
        self.events.publish("memo", **fields)


def fields_of(key: Key) -> dict[str, Field]:
    if isinstance(key, ArtifactKey):
        return {"tenant": key.session.tenant, "session": key.session.session, "artifact": key.tool_call}
    return {"tenant": key.tenant, str(key.scope): key.owner, "name": key.name}
