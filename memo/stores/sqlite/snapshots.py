"""Snapshots: the whole memory of a session at one moment, first as a list, then the texts that the caller requests.

Texts are returned without checking their hashes: the caller compares them with the list.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from memo.documents import ArtifactKey, DocumentKey, Scope
from memo.ids import OwnerId, SessionRef, ToolCallId, UserId
from memo.provider import SessionMemory
from memo.stores.sqlite import artifacts, contents, documents


def list_of(db: sqlite3.Connection, session: SessionRef, user: UserId) -> SessionMemory:
    tenant = session.tenant
    return SessionMemory(
        [
            *documents.list_of(db, tenant, OwnerId(session.session), Scope.SESSION),
            *documents.list_of(db, tenant, OwnerId(user), Scope.USER),
        ],
        artifacts.lines_of(db, session),
    )


def read(db: sqlite3.Connection, keys: Sequence[DocumentKey | ArtifactKey]) -> list[bytes | None]:
    bodies: dict[DocumentKey | ArtifactKey, bytes] = {}
    calls: dict[SessionRef, list[ToolCallId]] = {}
    for key in keys:
        if isinstance(key, ArtifactKey):
            calls.setdefault(key.session, []).append(key.tool_call)
        elif (body := documents.body_of(db, key)) is not None:
            bodies[key] = body
    for session, wanted in calls.items():
        for call, found, _ in artifacts.bodies_of(db, session, wanted):
            bodies[ArtifactKey(session, ToolCallId(call))] = contents.present(found, f"artifact {call} of {session}")
    return [bodies.get(key) for key in keys]
