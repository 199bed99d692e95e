"""Changes that an iteration has made and nobody has stored yet, and the one transaction that stores them.

A `UnitOfWork` is what a callback that can wait hands its change to: all of them are applied at once, at the end of the
flush, or none. A callback that cannot wait simply writes; for that one the flush promises order, and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memo.records import RecordChange, RecordStore
from memo.turn.callbacks import Noun, Verb


@dataclass(frozen=True, slots=True)
class Delta:
    """One change. `value` is the primitive, or for a deletion its id (of an instruction: the instruction)."""

    verb: Verb
    noun: Noun
    value: Any

    @property
    def callback(self) -> str:
        return f"{self.verb}_{self.noun}_callback"


class DeltaQueue:
    def __init__(self) -> None:
        self._deltas: list[Delta] = []

    def add(self, delta: Delta) -> None:
        self._deltas.append(delta)

    def take(self) -> list[Delta]:
        """Return all of them, in order, and hold none."""
        deltas, self._deltas = self._deltas, []
        return deltas

    def __iter__(self) -> Iterator[Delta]:
        return iter(self._deltas)

    def __len__(self) -> int:
        return len(self._deltas)


class UnitOfWork:
    """Collects changes for each store that takes part. One store is the rule; each store's changes are atomic."""

    def __init__(self) -> None:
        self._batches: dict[int, tuple[RecordStore, list[RecordChange]]] = {}

    def enlist(self, store: RecordStore, change: RecordChange) -> None:
        _, batch = self._batches.setdefault(id(store), (store, []))
        batch.append(change)

    async def commit(self) -> None:
        for store, changes in self._batches.values():
            await store.apply_records(changes)
