"""Standing instructions as records: they have no id, so an instruction is found by its text.

A record keeps its id and its place when its text changes. Pure: decisions over the records that a change meets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Self

from pydantic import PrivateAttr

from memo.errors import Absent
from memo.primitives import Tokenizable
from memo.records import Delete, Put, Record, RecordChange, RecordScope, outcome
from memo.turn.callbacks import Verb


class Replacement(Tokenizable):
    """A changed instruction that names the text it replaces. To a callback that does not ask, it is only the new text.

    A mutate callback takes two parameters, and an instruction has no id; so the old text travels with the new one.
    """

    _replaces: str = PrivateAttr(default="")

    @classmethod
    def of(cls, text: str | Tokenizable, replaces: str | Tokenizable) -> Self:
        made = cls(str(text) if isinstance(text, Tokenizable) else text)
        made._replaces = str(Tokenizable(replaces) if isinstance(replaces, str) else replaces)
        return made

    @property
    def replaces(self) -> str:
        return self._replaces


def replaced_by(value: object) -> str:
    """Return the text of the instruction that a mutation is for."""
    return value.replaces if isinstance(value, Replacement) else str(value)


def text_of(record: Record) -> str:
    return str(record.value["text"])


def records_after(scope: RecordScope, records: Iterable[Record], changes: Sequence[RecordChange]) -> list[Record]:
    """Return the records of a scope as they will be after the changes that are pending."""
    found = {record.id: record for record in records}
    for change in changes:
        if change.key.scope != scope:
            continue
        left = outcome(change, found.get(change.key.id))
        if left is None:
            found.pop(change.key.id, None)
        else:
            found[change.key.id] = left
    return list(found.values())


def instruction_changes(
    verb: Verb, scope: RecordScope, value: object, current: Sequence[Record], *, upsert: bool
) -> list[RecordChange]:
    """Return what to change in the records. Raise Absent for a mutation of an absent instruction, unless `upsert`."""
    text = str(value)
    same = [record for record in current if text_of(record) == text]
    if verb == "delete":
        return [Delete(scope.key(record.id)) for record in same]
    if verb == "mutate":
        old = next((record for record in current if text_of(record) == replaced_by(value)), None)
        if old is not None and same:
            return [Delete(scope.key(old.id))] if old.id != same[0].id else []
        if old is not None:
            return [Put(scope.key(old.id), {"text": text})]
        if not upsert:
            raise Absent(
                "cannot change this standing instruction: none has the text that it is for; name its text in `replaces`"
            )
    return [] if same else [Put(scope.key(_free_id(text, current)), {"text": text})]


def _free_id(text: str, current: Sequence[Record]) -> str:
    digest = hashlib.sha256(text.encode()).hexdigest()  # the text itself may be too long for an id
    taken = {record.id for record in current}  # by a record that had this text and was changed
    return next(id for id in _ids(digest) if id not in taken)


def _ids(digest: str) -> Iterator[str]:
    yield digest
    for number in count(2):
        yield f"{digest}-{number}"
