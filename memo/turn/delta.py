"""Delta: one change to a primitive, the sets in scope to which it is applied, and the transaction that stores it.

A set is ordered and holds one item for each id; adding an id again replaces the item in place. A callback that can
defer its write adds it to the `UnitOfWork`, which applies all of them together at the end of a flush. A callback that
cannot defer writes at once; for it, a flush guarantees only the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from memo.primitives import Memory, Message, Retrievable, Thought, Tokenizable, ToolCall
from memo.records import RecordChange, RecordStore
from memo.turn.callbacks import Noun, Verb
from memo.turn.instructions import Replacement

T = TypeVar("T")

PRIMITIVES: dict[Noun, type[Any]] = {
    "message": Message,
    "memory": Memory,
    "thought": Thought,
    "tool_call": ToolCall,
    "retrievable": Retrievable,
    "standing_instruction": Tokenizable,
}


@dataclass(frozen=True, slots=True)
class Delta:
    """One change. `value` is the primitive, or for a deletion its id (for an instruction, the instruction)."""

    verb: Verb
    noun: Noun
    value: Any

    @property
    def callback(self) -> str:
        return f"{self.verb}_{self.noun}_callback"


def name_of(item: object) -> str:
    """Return the key of an item in a set: its id, or for an instruction its text."""
    return str(item) if isinstance(item, str | Tokenizable) else str(getattr(item, "id", None) or id(item))


class TurnSet(MutableSet[T], Generic[T]):
    __slots__ = ("_items",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = {name_of(item): item for item in items}

    def __contains__(self, item: object) -> bool:
        return name_of(item) in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"TurnSet({list(self._items)})"

    def add(self, item: T) -> None:
        self._items[name_of(item)] = item

    def discard(self, item: object) -> None:
        """Remove an item, given the item or its id."""
        self._items.pop(name_of(item), None)

    def replace(self, old: str, item: T) -> None:
        """Put an item in the place of another, given by its id. One that is in the set already keeps its own place."""
        name = name_of(item)
        if old in self._items and name not in self._items:
            self._items = {
                name if key == old else key: item if key == old else value for key, value in self._items.items()
            }
            return
        if old != name:
            self._items.pop(old, None)
        self.add(item)

    def get(self, id: str) -> T | None:
        return self._items.get(id)

    def reset(self, items: Iterable[T]) -> None:
        self._items = {name_of(item): item for item in items}


@dataclass(slots=True)
class TurnSets:
    """Everything in scope: one set for each kind of primitive."""

    message: TurnSet[Message] = field(default_factory=TurnSet)
    memory: TurnSet[Memory] = field(default_factory=TurnSet)
    thought: TurnSet[Thought] = field(default_factory=TurnSet)
    tool_call: TurnSet[ToolCall] = field(default_factory=TurnSet)
    retrievable: TurnSet[Retrievable] = field(default_factory=TurnSet)
    standing_instruction: TurnSet[Tokenizable] = field(default_factory=TurnSet)

    def of(self, noun: Noun) -> TurnSet[Any]:
        chosen: TurnSet[Any] = getattr(self, noun)
        return chosen

    def apply(self, delta: Delta) -> None:
        chosen = self.of(delta.noun)
        if delta.verb == "delete":
            chosen.discard(delta.value)
        elif isinstance(delta.value, Replacement):
            chosen.replace(delta.value.replaces, delta.value)
        else:
            chosen.add(delta.value)

    def reset(self, other: TurnSets) -> None:
        for noun in PRIMITIVES:
            self.of(noun).reset(other.of(noun))


class UnitOfWork:
    """Collects the changes of a flush by store, usually one, and applies each store's changes atomically."""

    def __init__(self) -> None:
        self._batches: dict[int, tuple[RecordStore, list[RecordChange]]] = {}

    def enlist(self, store: RecordStore, change: RecordChange) -> None:
        _, batch = self._batches.setdefault(id(store), (store, []))
        batch.append(change)

    def pending(self, store: RecordStore) -> list[RecordChange]:
        """Return the changes of a store that were added and not yet applied."""
        return list(self._batches.get(id(store), (store, []))[1])

    async def commit(self) -> None:
        for store, changes in self._batches.values():
            await store.apply_records(changes)
