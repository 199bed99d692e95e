# Generated from sandboxd/client/_async/snapshots.py by scripts/unasync.py; change that file and run `make client`.
"""Snapshots of workspaces, and forks of sessions."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sandboxd.client._sync.calls import Calls
from sandboxd.client.errors import AnswerLost, malformed_answers, rebuild
from sandboxd.client.request import CREATE_S, given, json_request
from sandboxd.client.sse import EVENT_STREAM
from sandboxd.client.streams import Stream
from sandboxd.models.fork import ForkMemory, ForkView
from sandboxd.models.snapshot import SnapshotList, SnapshotProgress, SnapshotView

_COPY_S = 3600.0
"""A snapshot of a large workspace without a container may take as long as its disk needs."""


class SnapshotCalls(Calls):
    def take_snapshot(
        self,
        session: str,
        name: str | None = None,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> SnapshotView:
        """Copy the session's workspace as it is now; the snapshot outlives the sandbox.

        A running sandbox goes on, but what it writes meanwhile waits.
        """
        target = f"{self._session_path(session, tenant)}/snapshots"
        request = json_request("POST", target, given(name=name), key=idempotency_key, timeout_s=_COPY_S)
        return self._ask(SnapshotView, request)

    def take_snapshot_stream(
        self, session: str, name: str | None = None, *, tenant: str | None = None
    ) -> Stream[SnapshotProgress | SnapshotView]:
        """Take a snapshot and yield how far it is, then the snapshot."""
        target = f"{self._session_path(session, tenant)}/snapshots"
        request = json_request("POST", target, given(name=name), headers=EVENT_STREAM, timeout_s=_COPY_S)
        taken = None
        with self._events(request) as events:
            for kind, data in events:
                item = _parse_item(kind, data)
                if item is not None:
                    taken = item
                    yield item
        if not isinstance(taken, SnapshotView):
            raise AnswerLost("cannot tell the outcome: the stream ended before the snapshot was ready")

    def list_snapshots(self, session: str, *, tenant: str | None = None) -> list[SnapshotView]:
        """Return the session's snapshots, oldest first, whether it still has a sandbox or not."""
        request = json_request("GET", f"{self._session_path(session, tenant)}/snapshots")
        return (self._ask(SnapshotList, request)).items

    def get_snapshot(self, session: str, snapshot: str, *, tenant: str | None = None) -> SnapshotView:
        target = f"{self._session_path(session, tenant)}/snapshots/{snapshot}"
        return self._ask(SnapshotView, json_request("GET", target))

    def remove_snapshot(
        self, session: str, snapshot: str, *, tenant: str | None = None, idempotency_key: str | None = None
    ) -> None:
        """Remove a snapshot. Sandboxes that were made from it are not affected."""
        target = f"{self._session_path(session, tenant)}/snapshots/{snapshot}"
        self._send(json_request("DELETE", target, key=idempotency_key, timeout_s=CREATE_S))

    def fork(
        self,
        session: str,
        new: str | Sequence[str] | None = None,
        *,
        count: int | None = None,
        memory: ForkMemory = "copy",
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> ForkView:
        """Make new sessions as copies of this one, its files and its memory: all of them, or none.

        `new` names them; with `count` instead, the daemon makes up their names. With `memory="none"` they begin
        without messages, documents and artifacts.
        """
        names = {"session": new} if isinstance(new, str) else {"sessions": None if new is None else list(new)}
        content = given(**names, count=count, memory=memory)
        target = f"{self._session_path(session, tenant)}/fork"
        return self._ask(ForkView, json_request("POST", target, content, key=idempotency_key, timeout_s=_COPY_S))


def _parse_item(kind: str, data: str) -> SnapshotProgress | SnapshotView | None:
    """Parse one event of a snapshot; None for kinds that are ignored."""
    with malformed_answers():
        fields = json.loads(data)
        if kind == "progress":
            return SnapshotProgress.model_validate(fields)
        if kind == "snapshot":
            return SnapshotView.model_validate(fields)
    if kind == "error":
        raise rebuild(fields if isinstance(fields, dict) else {})
    return None
