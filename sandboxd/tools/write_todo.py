"""write_todo: write the session's TODO.md, a list of items with ids, in the store."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from memo.documents import TODO, DocumentKey
from memo.paths import path_of
from sandboxd.errors import InvalidRequest
from sandboxd.models.paths import CleanText
from sandboxd.models.tool import ToolResult
from sandboxd.tools.arguments import ToolArguments, also
from sandboxd.tools.checklist import ChecklistItem, TodoStatus, merge_items, parse_list, render_items
from sandboxd.tools.context import ToolContext
from sandboxd.tools.formats import ToolHints
from sandboxd.tools.memory import Unseen, change_document, memory_of, write_document

name = "write_todo"
description = (
    "Keep the session's to-do list in /workspace/memo/session/TODO.md. Without merge the whole list is replaced; with "
    "merge, items are updated by id, new ones are added and the rest stays. If others changed the same items since you "
    "last saw the list, nothing is written and the newer text is returned."
)

hints = ToolHints(title="Keep a to-do list")

_STATUS_WORDS = {
    **dict.fromkeys(("todo", "open", "not_started"), "pending"),
    **dict.fromkeys(("doing", "started", "active"), "in_progress"),
    **dict.fromkeys(("done", "complete", "finished"), "completed"),
    "canceled": "cancelled",
}
"""Other words for a status that models use."""


class Todo(ToolArguments):
    aliases = also(content="text task title")
    unused = frozenset({"activeForm", "priority"})

    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$", description="A short id that never changes.")
    content: CleanText | None = Field(
        default=None, min_length=1, max_length=10_000, description="The task. Optional for an existing item with merge."
    )
    status: Literal["pending", "in_progress", "completed", "cancelled"] | None = Field(
        default=None, description="The item's status; a new item is pending by default."
    )

    @field_validator("status", mode="before")
    @classmethod
    def _plain_status(cls, status: Any) -> Any:
        if not isinstance(status, str):
            return status
        word = status.strip().lower().replace("-", "_").replace(" ", "_")
        return _STATUS_WORDS.get(word, word)


class Arguments(ToolArguments):
    aliases = also(todos="items tasks todo")

    todos: list[Todo] = Field(max_length=1000, description="The items, in order.")
    merge: bool = Field(default=False, description="Update the existing list instead of replacing it.")

    @field_validator("todos")
    @classmethod
    def _ids_differ(cls, todos: list[Todo]) -> list[Todo]:
        if len({todo.id for todo in todos}) != len(todos):
            raise ValueError("must not contain the same id twice")
        return todos


def writes_memory(arguments: Arguments) -> bool:
    return True


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    key = DocumentKey.of_session(context.ref, TODO)
    sentence = _sentence(len(arguments.todos), str(path_of(key)))
    if not arguments.merge:
        text = render_items([_item(todo) for todo in arguments.todos])
        return await write_document(context, key, text, name, sentence)
    seen = _items(await memory_of(context).agents.seen_text(context.ref, key) or "")

    def change(text: str) -> tuple[str, str]:
        before = _items(text)
        merged = merge_items(text, [(todo.id, todo.content, _status(todo)) for todo in arguments.todos])
        after = _items(merged)
        if any(after[id_] != item != seen.get(id_) for id_, item in before.items()):
            raise Unseen
        return merged, sentence

    return await change_document(context, key, change, name, creates=True)


def _items(text: str) -> dict[str, ChecklistItem]:
    return {part.id: part for part in parse_list(text) if isinstance(part, ChecklistItem)}


def _item(todo: Todo) -> ChecklistItem:
    if todo.content is None:
        raise InvalidRequest(
            f"cannot write the item {todo.id}: it has no content; set content, or set merge to update the list"
        )
    return ChecklistItem(todo.id, todo.content, _status(todo) or TodoStatus.PENDING)


def _status(todo: Todo) -> TodoStatus | None:
    return None if todo.status is None else TodoStatus(todo.status)


def _sentence(count: int, path: str) -> str:
    return f"Wrote {count} item{'' if count == 1 else 's'} to {path}."
