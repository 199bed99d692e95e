"""What is in scope of a turn: ordered sets of primitives, one of each id. Adding an id again replaces it in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSet
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from memo.primitives import Memory, Message, Retrievable, Thought, Tokenizable, ToolCall
from memo.turn.callbacks import Noun
from memo.turn.deltas import Delta

T = TypeVar("T")


def name_of(item: object) -> str:
    """Return what tells one item from another: its id, or for an instruction its text."""
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
        """Remove an item, given itself or its id."""
        self._items.pop(name_of(item), None)

    def get(self, id: str) -> T | None:
        return self._items.get(id)

    def reset(self, items: Iterable[T]) -> None:
        self._items = {name_of(item): item for item in items}


PRIMITIVES: dict[Noun, type[Any]] = {
    "message": Message,
    "memory": Memory,
    "thought": Thought,
    "tool_call": ToolCall,
    "retrievable": Retrievable,
    "standing_instruction": Tokenizable,
}


@dataclass(slots=True)
class TurnSets:
    """What is in scope, kind by kind."""

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
        else:
            chosen.add(delta.value)

    def reset(self, other: TurnSets) -> None:
        for noun in PRIMITIVES:
            self.of(noun).reset(other.of(noun))
