"""Anthropic's memory tool over documents: `/memories/NAME` is the document NAME of a user, or of a session.

Answers have the text that the model knows from the SDK's own tool over files. Every change is a revision with an actor
and a reason, so the history names it and it can be restored. A change states the revision that it is based on: it never
overwrites what another agent wrote in between.
"""

from __future__ import annotations

from typing import Any, Literal

from memo.errors import Absent, InvalidKey
from sandboxd.client import AsyncClient, Client, Document, DocumentInfo
from sandboxd.integrations.anthropic_memory_answers import (
    CHANGED,
    checked,
    deleted_names,
    inserted,
    name_of,
    not_a_file,
    renamed_names,
    replaced,
    shown_directory,
    shown_file,
    told_to_the_model,
)
from sandboxd.integrations.extra import needs_extra

with needs_extra("anthropic"):
    from anthropic.lib.tools import BetaAbstractMemoryTool, BetaAsyncAbstractMemoryTool
    from anthropic.types.beta import (
        BetaMemoryTool20250818CreateCommand,
        BetaMemoryTool20250818DeleteCommand,
        BetaMemoryTool20250818InsertCommand,
        BetaMemoryTool20250818RenameCommand,
        BetaMemoryTool20250818StrReplaceCommand,
        BetaMemoryTool20250818ViewCommand,
    )

ACTOR = "anthropic-memory"

Scope = Literal["user", "session"]


class SandboxdMemoryTool(BetaAbstractMemoryTool):
    """`SandboxdMemoryTool(client, "ada")` is a tool for `client.beta.messages.run_tools`."""

    def __init__(
        self,
        client: Client,
        owner: str,
        *,
        scope: Scope = "user",
        actor: str = ACTOR,
        tenant: str | None = None,
        cache_control: Any = None,
    ) -> None:
        """Take the id of a user, or with `scope="session"` of a session; `actor` is the writer in the history."""
        super().__init__(cache_control=cache_control)
        self._client = client
        self._owner = owner
        self._place: dict[str, Any] = {"scope": scope, "tenant": tenant}
        self._actor = actor

    def call(self, input: object) -> Any:
        return self.execute(checked(input))

    def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        name = name_of(command.path)
        if name and (document := self._find(name)) is not None:
            return shown_file(command.path, document.text, command.view_range)
        return shown_directory(command.path, name, self._list())

    def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        name = name_of(command.path)
        with told_to_the_model(conflict=f"File {command.path} already exists"):
            self._client.write_memo(
                self._owner, name, command.file_text, expected=0, **self._author(command.command), **self._place
            )
        return f"File created successfully at: {command.path}"

    def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        document = self._read(command.path)
        text, answer = replaced(command.path, document.text, command.old_str, command.new_str)
        self._write(command.path, text, document, command.command)
        return answer

    def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        document = self._read(command.path)
        text = inserted(document.text, command.insert_line, command.insert_text)
        self._write(command.path, text, document, command.command)
        return f"The file {command.path} has been edited."

    def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        names = deleted_names(command.path, self._list())
        for name in names:
            with told_to_the_model():
                self._client.delete_memo(self._owner, name, **self._author(command.command), **self._place)
        return f"Successfully deleted {command.path}"

    def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        names = renamed_names(command.old_path, command.new_path, self._list())
        for old, new in names:
            with told_to_the_model(conflict=f"The destination {command.new_path} already exists"):
                self._client.move_memo(self._owner, old, new, **self._author(command.command), **self._place)
        return f"Successfully renamed {command.old_path} to {command.new_path}"

    def _list(self) -> list[DocumentInfo]:
        return self._client.list_memo(self._owner, **self._place)

    def _find(self, name: str) -> Document | None:
        try:
            return self._client.read_memo(self._owner, name, **self._place)
        except (Absent, InvalidKey):
            return None

    def _read(self, path: str) -> Document:
        name = name_of(path)
        if name and (document := self._find(name)) is not None:
            return document
        raise not_a_file(path, name, self._list())

    def _write(self, path: str, text: str, seen: Document, reason: str) -> None:
        with told_to_the_model(conflict=CHANGED):
            self._client.write_memo(
                self._owner, name_of(path), text, expected=seen.revision, **self._author(reason), **self._place
            )

    def _author(self, command: str) -> dict[str, Any]:
        return {"actor": self._actor, "reason": f"memory tool: {command}"}


class AsyncSandboxdMemoryTool(BetaAsyncAbstractMemoryTool):
    """The same tool for an async program, with an `AsyncClient`."""

    def __init__(
        self,
        client: AsyncClient,
        owner: str,
        *,
        scope: Scope = "user",
        actor: str = ACTOR,
        tenant: str | None = None,
        cache_control: Any = None,
    ) -> None:
        """Take the id of a user, or with `scope="session"` of a session; `actor` is the writer in the history."""
        super().__init__(cache_control=cache_control)
        self._client = client
        self._owner = owner
        self._place: dict[str, Any] = {"scope": scope, "tenant": tenant}
        self._actor = actor

    async def call(self, input: object) -> Any:
        return await self.execute(checked(input))

    async def view(self, command: BetaMemoryTool20250818ViewCommand) -> str:
        name = name_of(command.path)
        if name and (document := await self._find(name)) is not None:
            return shown_file(command.path, document.text, command.view_range)
        return shown_directory(command.path, name, await self._list())

    async def create(self, command: BetaMemoryTool20250818CreateCommand) -> str:
        name = name_of(command.path)
        with told_to_the_model(conflict=f"File {command.path} already exists"):
            await self._client.write_memo(
                self._owner, name, command.file_text, expected=0, **self._author(command.command), **self._place
            )
        return f"File created successfully at: {command.path}"

    async def str_replace(self, command: BetaMemoryTool20250818StrReplaceCommand) -> str:
        document = await self._read(command.path)
        text, answer = replaced(command.path, document.text, command.old_str, command.new_str)
        await self._write(command.path, text, document, command.command)
        return answer

    async def insert(self, command: BetaMemoryTool20250818InsertCommand) -> str:
        document = await self._read(command.path)
        text = inserted(document.text, command.insert_line, command.insert_text)
        await self._write(command.path, text, document, command.command)
        return f"The file {command.path} has been edited."

    async def delete(self, command: BetaMemoryTool20250818DeleteCommand) -> str:
        names = deleted_names(command.path, await self._list())
        for name in names:
            with told_to_the_model():
                await self._client.delete_memo(self._owner, name, **self._author(command.command), **self._place)
        return f"Successfully deleted {command.path}"

    async def rename(self, command: BetaMemoryTool20250818RenameCommand) -> str:
        names = renamed_names(command.old_path, command.new_path, await self._list())
        for old, new in names:
            with told_to_the_model(conflict=f"The destination {command.new_path} already exists"):
                await self._client.move_memo(self._owner, old, new, **self._author(command.command), **self._place)
        return f"Successfully renamed {command.old_path} to {command.new_path}"

    async def _list(self) -> list[DocumentInfo]:
        return await self._client.list_memo(self._owner, **self._place)

    async def _find(self, name: str) -> Document | None:
        try:
            return await self._client.read_memo(self._owner, name, **self._place)
        except (Absent, InvalidKey):
            return None

    async def _read(self, path: str) -> Document:
        name = name_of(path)
        if name and (document := await self._find(name)) is not None:
            return document
        raise not_a_file(path, name, await self._list())

    async def _write(self, path: str, text: str, seen: Document, reason: str) -> None:
        with told_to_the_model(conflict=CHANGED):
            await self._client.write_memo(
                self._owner, name_of(path), text, expected=seen.revision, **self._author(reason), **self._place
            )

    def _author(self, command: str) -> dict[str, Any]:
        return {"actor": self._actor, "reason": f"memory tool: {command}"}
