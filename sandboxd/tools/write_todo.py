"""write_todo: the session's TODO.md, as a list of items with ids, in the store."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from memo.documents import TODO, DocumentKey
from memo.paths import path_of
from sandboxd.errors import InvalidRequest
from sandboxd.tools.checklist import Item, Status, merge_items, render_items
from sandboxd.tools.context import CleanText, ToolArguments, ToolContext, ToolResult
from sandboxd.tools.memory import commit, conflict_result, current, is_stale, memory_of, repeated

name = "write_todo"
description = (
    "Keep the session's to-do list, in /workspace/memo/session/TODO.md. Without merge the list is written anew; with "
    "merge, items are changed by their id, new ones are added, and the rest stays. If somebody else changed the list "
    "meanwhile, nothing is written and the newer text is returned."
)


class Todo(ToolArguments):
    id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$", description="A short id that stays the same.")
    content: CleanText | None = Field(
        default=None, min_length=1, max_length=10_000, description="What is to be done. May be left out with merge."
    )
    status: Literal["pending", "in_progress", "completed", "cancelled"] | None = Field(
        default=None, description="How far it is; pending unless said otherwise."
    )


class Arguments(ToolArguments):
    todos: list[Todo] = Field(max_length=1000, description="The items, in their order.")
    merge: bool = Field(default=False, description="Change the list that is there instead of replacing it.")

    @field_validator("todos")
    @classmethod
    def _ids_differ(cls, todos: list[Todo]) -> list[Todo]:
        if len({todo.id for todo in todos}) != len(todos):
            raise ValueError("must not hold the same id twice")
        return todos


def writes_memory(arguments: Arguments) -> bool:
    return True


async def run(context: ToolContext, arguments: Arguments) -> ToolResult:
    key = DocumentKey.of_session(context.ref, TODO)
    path = str(path_of(key))
    if not arguments.merge:
        text = render_items([_item(todo) for todo in arguments.todos])
        shown = await memory_of(context).shown(context.ref, path)
        return await commit(context, key, text, shown, name, _sentence(len(arguments.todos), path))
    if (done := await repeated(context, key, name)) is not None:
        return done
    expected, document = await current(context, key)
    if document is not None and is_stale(expected, document):
        return conflict_result(path, document)
    before = "" if document is None else document.content
    text = merge_items(before, [(todo.id, todo.content, _status(todo)) for todo in arguments.todos])
    base = expected if document is None else document.revision
    return await commit(context, key, text, base, name, _sentence(len(arguments.todos), path))


def _item(todo: Todo) -> Item:
    if todo.content is None:
        raise InvalidRequest(f"cannot write the item {todo.id}: it has no content")
    return Item(todo.id, todo.content, _status(todo) or Status.PENDING)


def _status(todo: Todo) -> Status | None:
    return None if todo.status is None else Status(todo.status)


def _sentence(count: int, path: str) -> str:
    return f"Wrote {count} item{'' if count == 1 else 's'} to {path}."
