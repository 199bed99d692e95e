"""Leases and the consolidation ledger on disk, in the user's directory and under the user's lock.

.memo/lease.json            the last lease granted
.memory-state.json          standing and memory after the last settled run
.memo/memory-state.next     the same for a run whose document is about to be committed: intent before effect
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from memo.documents import Document, Scope
from memo.errors import Corrupt, RevisionConflict
from memo.ids import SessionId, SessionRef, TenantId, UserId, UserRef
from memo.leases import Held, Lease, check_fence, grant, let_go, prolong
from memo.ledger import Json, LedgerEntry, PendingUser, SessionRevision, Settlement
from memo.messages import decode_object, encode_object
from memo.stores.filesystem import documents, sessions
from memo.stores.filesystem.directory import Directory
from memo.stores.filesystem.home import Home
from memo.stores.filesystem.layout import STAGED, Owner
from memo.stores.filesystem.session_state import SessionRecord
from memo.stores.options import StoreOptions
from memo.stores.prepared_text import PreparedText, check_author, prepare_document
from memo.stores.timestamps import from_micros, to_micros

R = TypeVar("R")

_log = logging.getLogger("memo.stores")

LEASE: Final = "lease.json"
STATE: Final = ".memory-state.json"
NEXT_STATE: Final = "memory-state.next"


class FilesystemLedger(ABC):
    options: StoreOptions

    @abstractmethod
    async def _on_root(self, work: Callable[[Directory], R]) -> R: ...

    @abstractmethod
    async def _read(self, owner: Owner, query: Callable[[Home | None], R]) -> R: ...

    @abstractmethod
    async def _write(self, owner: Owner, change: Callable[[Home], R]) -> R: ...

    async def acquire_lease(self, user: UserRef, holder: str, ttl_s: float) -> Lease | Held:
        def acquire(home: Home) -> Lease | Held:
            _finish_state(home)
            granted = grant(read_lease(home, user), user, holder, ttl_s, self.options.clock())
            if isinstance(granted, Lease):
                _keep_lease(home, granted)
            return granted

        return await self._write(Owner.of_user(user), acquire)

    async def renew_lease(self, lease: Lease, ttl_s: float) -> Lease:
        def renew(home: Home) -> Lease:
            renewed = prolong(read_lease(home, lease.user), lease, ttl_s, self.options.clock())
            _keep_lease(home, renewed)
            return renewed

        return await self._write(Owner.of_user(lease.user), renew)

    async def release_lease(self, lease: Lease) -> None:
        def release(home: Home) -> None:
            freed = let_go(read_lease(home, lease.user), lease)
            if freed is not None:
                _keep_lease(home, freed)

        await self._write(Owner.of_user(lease.user), release)

    async def list_pending(self) -> list[PendingUser]:
        return await self._on_root(list_pending)

    async def list_standings(self, tenant: str | None = None) -> list[tuple[UserRef, Json]]:
        wanted = None if tenant is None else TenantId(tenant)
        return await self._on_root(lambda root: list(_standings(root, wanted)))

    async def list_session_revisions(self, user: UserRef) -> list[SessionRevision]:
        return await self._on_root(partial(list_session_revisions, user=user))

    async def read_ledger(self, user: UserRef) -> LedgerEntry:
        revisions = await self.list_session_revisions(user)
        changed = [revision for revision in revisions if revision.is_pending]

        def read(home: Home | None) -> LedgerEntry:
            state = {} if home is None else _read_state(home)
            return LedgerEntry(
                state.get("standing", {}),
                state.get("memory", {}),
                len(changed),
                max((revision.updated_at for revision in changed), default=None),
                None if home is None else read_lease(home, user),
            )

        return await self._read(Owner.of_user(user), read)

    async def settle(self, lease: Lease, settlement: Settlement) -> Document | None:
        limit = self.options.limits.message_bytes
        for noun, value in (("standing", settlement.standing), ("memory", settlement.memory or {})):
            encode_object(noun, value, limit)
        change, text = settlement.document, None
        if change is not None:
            check_author(change.author)
            content = change.content
            text = await self._on_root(lambda _: prepare_document(content, self.options))
        left = (await self._on_root(lambda root: _state_of(root, lease.user))).get("settled", {})
        await self._unmark(lease.user, left)  # finish what a killed run left before replacing its list
        written = await self._write(Owner.of_user(lease.user), lambda home: settle(home, lease, settlement, text))
        await self._unmark(lease.user, settlement.settled)
        return written

    async def _unmark(self, user: UserRef, settled: Mapping[Any, int]) -> None:
        root = await self._on_root(lambda root: root)
        marked = await self._on_root(
            lambda root: [s for s in settled if sessions.is_marked_pending(root, SessionRef(user.tenant, SessionId(s)))]
        )
        for session in marked:
            ref = SessionRef(user.tenant, SessionId(session))
            await self._write(Owner.of_session(ref), partial(_unmark, root, ref, settled[session]))


def _unmark(root: Directory, ref: SessionRef, revision: int, locked: Home) -> None:
    record = sessions.record_of(root, ref)
    if record is None or sessions.revision_of(record) <= revision:
        sessions.unmark_pending(root, ref)


def list_pending(root: Directory) -> list[PendingUser]:
    found: dict[UserRef, list[SessionRecord]] = {}
    for record in sessions.pending_records(root):
        found.setdefault(UserRef(record.ref.tenant, record.user), []).append(record)
    users: list[PendingUser] = []
    for user, records in sorted(found.items()):
        state = _listed_state(root, user)
        settled = state.get("settled", {})
        changes = [r.state.updated_at for r in records if sessions.revision_of(r) > settled.get(r.ref.session, 0)]
        if changes:
            users.append(PendingUser(user, len(changes), from_micros(max(changes)), state.get("standing", {})))
    return users


def list_session_revisions(root: Directory, user: UserRef) -> list[SessionRevision]:
    settled = _state_of(root, user).get("settled", {})
    found: list[SessionRevision] = []
    for meta in sessions.list_of_user(root, user):
        ref = SessionRef(user.tenant, SessionId(meta.session))
        record = sessions.listed(root, ref)
        revision = 0 if record is None else sessions.revision_of(record)
        if revision:
            is_pending = revision > settled.get(ref.session, 0) and sessions.is_marked_pending(root, ref)
            found.append(SessionRevision(ref.session, revision, meta.updated_at, is_pending))
    return found


def settle(home: Home, lease: Lease, settlement: Settlement, text: PreparedText | None) -> Document | None:
    check_fence(read_lease(home, lease.user), lease, home.options.clock())
    before = _read_state(home)
    memory = before.get("memory", {}) if settlement.memory is None else settlement.memory
    # `settled` is part of the state because the marks are removed afterwards, a step that a killed run may not reach.
    state: Json = {"standing": settlement.standing, "memory": memory, "settled": dict(settlement.settled)}
    change, written = settlement.document, None
    if change is not None and text is not None:
        revision = len(home.state.documents.get(change.key.name, [])) + 1
        awaits = {"name": change.key.name, "revision": revision, "sha256": text.sha256}
        home.hidden.stage(NEXT_STATE, _encoded({**state, "awaits": awaits}))
        home.hidden.sync()
        try:
            written = documents.write(home, change.key, text, change.expected, change.author)
        except RevisionConflict:
            home.hidden.remove(NEXT_STATE)
            raise
    _keep_state(home, state)
    return written


def read_lease(home: Home, user: UserRef) -> Lease | None:
    content = home.hidden.read(LEASE)
    if content is None:
        return None
    found = decode_object(content, home.hidden.where(LEASE))
    try:
        return Lease(user, str(found["holder"]), int(found["token"]), from_micros(int(found["expires_at"])))
    except (KeyError, TypeError, ValueError):
        raise Corrupt(f"cannot read {home.hidden.where(LEASE)}: it is damaged") from None


def _keep_lease(home: Home, lease: Lease) -> None:
    value = {"holder": lease.holder, "token": lease.token, "expires_at": to_micros(lease.expires_at)}
    home.hidden.stage(STAGED, _encoded(value))
    home.hidden.move(STAGED, home.hidden, LEASE)


def _read_state(home: Home) -> Json:
    """Return the last settled state; the state of a killed run counts if its document was committed."""
    begun = home.hidden.read(NEXT_STATE)
    if begun is not None:
        state = decode_object(begun, home.hidden.where(NEXT_STATE))
        awaits = state.pop("awaits", {})
        versions = home.state.documents.get(awaits.get("name", ""), [])
        if any(v.revision.sha256 == awaits.get("sha256") for v in versions[awaits.get("revision", 1) - 1 :]):
            return state
    content = home.directory.read(STATE)
    return {} if content is None else decode_object(content, home.directory.where(STATE))


def _finish_state(home: Home) -> None:
    """Move the state of a killed run into place, if it counts."""
    if home.hidden.stat(NEXT_STATE) is not None:
        _keep_state(home, _read_state(home))


def _keep_state(home: Home, state: Json) -> None:
    home.hidden.stage(STAGED, _encoded(state))
    home.hidden.move(STAGED, home.directory, STATE)
    home.hidden.remove(NEXT_STATE)


def _state_of(root: Directory, user: UserRef) -> Json:
    """Read without a lock: the file is replaced atomically. The next lease finishes the state of a killed run."""
    directory = root.descend(*Owner.of_user(user).path)
    if directory is None:
        return {}
    with directory:
        content = directory.read(STATE)
        return {} if content is None else decode_object(content, directory.where(STATE))


def _listed_state(root: Directory, user: UserRef) -> Json:
    """Return the state for one line of a scan; a damaged one must not hide the other users.

    It is replaced by a standing that no parser accepts, so that using this line raises Corrupt like `read_ledger`.
    """
    try:
        return _state_of(root, user)
    except Corrupt as error:
        _log.warning("cannot list user %s: %s", user, error)
        return {"standing": {"unreadable": True}}


def _standings(root: Directory, tenant: TenantId | None) -> Iterator[tuple[UserRef, Json]]:
    for owner in sessions.owners_of(root, tenant):
        if owner.scope is Scope.USER:
            user = UserRef(owner.tenant, UserId(owner.owner))
            standing = _listed_state(root, user).get("standing")
            if standing:
                yield user, standing


def _encoded(value: Json) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
