"""Records: JSON objects that a store keeps by (tenant, kind, scope, id) and changes in atomic batches.

The turn contract and the storage steps are stored as records. The pure functions here decide what a change means; a
store only carries it out. A record may name a group by which it is listed, as a message names its session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from memo.errors import Absent, InvalidContent, InvalidKey, Unsupported
from memo.ids import Id, TenantId
from memo.messages import encode_object

Value = dict[str, Any]

NAME_BYTES = 512


class RecordKind(Id):
    __slots__ = ()
    noun = "record kind"


@dataclass(frozen=True, slots=True, order=True)
class RecordScope:
    """All records of one kind in one place, for one tenant. `place` is free text, such as `session:s1`."""

    tenant: TenantId
    kind: RecordKind
    place: str

    @classmethod
    def of(cls, tenant: str, kind: str, place: str) -> RecordScope:
        return cls(TenantId(tenant), RecordKind(kind), checked_name("record scope", place))

    def key(self, id: str) -> RecordKey:
        return RecordKey(self, checked_name("record id", id))


@dataclass(frozen=True, slots=True, order=True)
class RecordKey:
    scope: RecordScope
    id: str

    def __str__(self) -> str:
        return f"{self.scope.kind} {self.id}"


def checked_name(noun: str, text: object) -> str:
    """Return the text if a store can use it as a name. Names are never paths, so most of Unicode is allowed."""
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidKey(f"cannot use this {noun}: it must be non-empty text without NUL")
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"cannot use this {noun}: it contains half of a surrogate pair") from None
    if size_bytes > NAME_BYTES:
        raise InvalidKey(f"cannot use this {noun}: {size_bytes} bytes exceed the limit of {NAME_BYTES}")
    return text


def checked_group(group: object) -> str:
    """Return the name of a group; \"\" means that the record has no group."""
    return "" if group == "" else checked_name("record group", group)


@dataclass(frozen=True, slots=True)
class Put:
    """Store the value, replacing any old one. A record that exists keeps its position in the order."""

    key: RecordKey
    value: Mapping[str, Any]
    group: str = ""


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge the fields into the record. If it does not exist: raise Absent, or create it if `create`."""

    key: RecordKey
    fields: Mapping[str, Any]
    group: str | None = None
    create: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the record. Removing a record that does not exist changes nothing."""

    key: RecordKey


RecordChange = Put | Merge | Delete


@dataclass(frozen=True, slots=True)
class Record:
    id: str
    value: Value
    group: str = ""


class RecordStore(Protocol):
    async def apply_records(self, changes: Sequence[RecordChange]) -> list[Value | None]:
        """Apply all changes in order, durably, or none. Return the record after each change, None for a deletion.

        All changes of a batch belong to one tenant.
        """

    async def read_record(self, key: RecordKey) -> Record | None:
        """Return the record, or None if it does not exist."""

    async def list_records(self, scope: RecordScope, group: str | None = None) -> list[Record]:
        """Return the records of the scope, or of one group in it, in the order in which they were first put."""


def has_records(store: object) -> TypeGuard[RecordStore]:
    methods = ("apply_records", "read_record", "list_records")
    return all(callable(getattr(store, method, None)) for method in methods)


def require_records(store: object) -> RecordStore:
    if not has_records(store):
        raise Unsupported(f"cannot keep records in {type(store).__name__}: it has no apply_records")
    return store


def tenant_of(changes: Sequence[RecordChange]) -> TenantId:
    tenants = {change.key.scope.tenant for change in changes}
    if len(tenants) != 1:
        raise InvalidContent(f"cannot apply this batch: it names {len(tenants)} tenants; it must name one")
    return tenants.pop()


def needs_current(change: RecordChange) -> bool:
    """Return whether the result of a change depends on the current record."""
    return isinstance(change, Merge)


def outcome(change: RecordChange, current: Record | None) -> Record | None:
    """Return the record after the change; None means that it no longer exists."""
    match change:
        case Put(key, value, group):
            return Record(key.id, dict(value), checked_group(group))
        case Merge(key, fields, group, create):
            if current is None and not create:
                raise Absent(f"cannot update {key}: it does not exist")
            merged = {**(current.value if current else {}), **fields}
            inherited = current.group if current else ""
            return Record(key.id, merged, inherited if group is None else checked_group(group))
        case Delete():
            return None


def encode_record(key: RecordKey, record: Record, limit_bytes: int) -> str:
    return encode_object(f"{key.scope.kind} record", record.value, limit_bytes)
