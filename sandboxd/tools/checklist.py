"""A to-do list as Markdown: one line per item, with its id, in a form that parses back exactly.

    - [ ] (id) pending        - [~] (id) in progress
    - [x] (id) completed      - [-] (id) cancelled

Further lines of an item are indented by two spaces. Lines that are not items are kept as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from sandboxd.errors import InvalidRequest

HEADING = "# TODO"
_INDENT = "  "
_ITEM = re.compile(r"- \[([ ~xX-])\] \(([^()\s]+)\) (.*)")


class TodoStatus(Enum):
    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


_MARKS = {TodoStatus.PENDING: " ", TodoStatus.IN_PROGRESS: "~", TodoStatus.COMPLETED: "x", TodoStatus.CANCELLED: "-"}
_STATUSES = {mark: status for status, mark in _MARKS.items()}


@dataclass(frozen=True, slots=True)
class ChecklistItem:
    id: str
    content: str
    status: TodoStatus


Update = tuple[str, str | None, TodoStatus | None]
"""An item's id, new content and new status; None keeps the current value."""


def render_items(items: Iterable[ChecklistItem]) -> str:
    return _join([HEADING, "", *map(_render, items)])


def parse_list(text: str) -> list[ChecklistItem | str]:
    """Return the items of a list and every other line, unchanged and in order."""
    parts: list[ChecklistItem | str] = []
    for line in text.removesuffix("\n").split("\n") if text else []:
        last = parts[-1] if parts else None
        if (found := _ITEM.fullmatch(line)) is not None:
            parts.append(ChecklistItem(found[2], found[3], _STATUSES[found[1].lower()]))
        elif isinstance(last, ChecklistItem) and line.startswith(_INDENT):
            parts[-1] = replace(last, content=f"{last.content}\n{line.removeprefix(_INDENT)}")
        else:
            parts.append(line)
    return parts


def merge_items(text: str, updates: Sequence[Update]) -> str:
    """Update items by id and append new ones. Lines that are not items stay in place."""
    parts = parse_list(text) or [HEADING, ""]
    place = {part.id: index for index, part in enumerate(parts) if isinstance(part, ChecklistItem)}
    for id_, content, status in updates:
        if id_ in place:
            item = parts[place[id_]]
            assert isinstance(item, ChecklistItem)  # noqa: S101  # `place` holds only items
            parts[place[id_]] = ChecklistItem(id_, content or item.content, status or item.status)
        elif content is None:
            raise InvalidRequest(
                f"cannot add the item {id_}: the list has no such item, and a new one needs content; set content"
            )
        else:
            parts.append(ChecklistItem(id_, content, status or TodoStatus.PENDING))
    return _join([part if isinstance(part, str) else _render(part) for part in parts])


def _render(item: ChecklistItem) -> str:
    return f"- [{_MARKS[item.status]}] ({item.id}) " + item.content.replace("\n", f"\n{_INDENT}")


def _join(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"
