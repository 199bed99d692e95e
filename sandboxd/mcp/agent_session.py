"""One session as an MCP client sees it: its tools and its memory, over the daemon's API.

The sandbox is created by the first call that needs it. Nothing here removes data, except `destroy`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import anyio

from memo.errors import Unsupported
from memo.ids import SessionId
from sandboxd.client import AsyncClient, SandboxView, ToolResult
from sandboxd.client.errors import KNOWN_ERRORS
from sandboxd.client.request import Scope
from sandboxd.errors import Gone, NotFound, SandboxNotFound, SessionNotFound
from sandboxd.mcp.binding import Binding
from sandboxd.models.artifact import Artifact
from sandboxd.models.document import Document, DocumentInfo, Revision, Written

DEFAULT_USER = "default"
CANCEL_S = 15.0
"""How long to wait until a cancelled call is dead."""

OnOutput = Callable[[str], Awaitable[None]]
T = TypeVar("T")


class AgentSession:
    def __init__(self, client: AsyncClient, binding: Binding, session: SessionId, actor: str) -> None:
        self.client = client
        self.tenant = binding.tenant
        self.name = session
        self._user = binding.user
        self._actor = actor

    async def user(self) -> str:
        """Return the user: the one that was asked for, else the sandbox's, else the session's, else the default."""
        if self._user is not None:
            return self._user
        with suppress(NotFound):
            return (await self.client.get_sandbox(self.name, tenant=self.tenant)).user
        with suppress(NotFound, Unsupported):  # an outage is not an absent session: it raises
            return (await self.client.get_session(self.name, tenant=self.tenant)).user
        return DEFAULT_USER

    async def create(self, **options: Any) -> SandboxView:
        """Create the session's sandbox, or start it again if it has no container."""
        user = await self.user()
        return await self.client.ensure_sandbox(self.name, user, tenant=self.tenant, **options)

    async def call_tool(self, name: str, arguments: Mapping[str, Any], on_output: OnOutput | None) -> ToolResult:
        """Call a tool of the sandbox. Cancelling it returns once the processes that it started are killed."""
        try:
            return await self._call_tool(name, arguments, on_output)
        except SandboxNotFound:
            await self.create()
        except Gone as error:
            await self.create()
            content = f"{error}. The sandbox was started again with its files; check them, then call {name} again."
            return ToolResult(ok=False, content=content, details={"code": error.code})
        return await self._call_tool(name, arguments, on_output)

    async def _call_tool(self, name: str, arguments: Mapping[str, Any], on_output: OnOutput | None) -> ToolResult:
        call_id = secrets.token_hex(8)
        try:
            items: AsyncGenerator[str | ToolResult, None]
            items = self.client.tool_stream(self.name, name, arguments, call_id=call_id, tenant=self.tenant)
            async with aclosing(items):
                async for item in items:
                    if isinstance(item, ToolResult):
                        return item
                    if on_output is not None:
                        await on_output(item)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(CANCEL_S, shield=True), suppress(*KNOWN_ERRORS):
                await self.client.cancel_call(self.name, call_id, tenant=self.tenant)
            raise
        raise AssertionError("a stream of a tool call ends with its result or raises")

    async def list_memo(self, scope: Scope) -> list[DocumentInfo]:
        """Return the documents by name; none if the session does not exist yet."""
        try:
            found = await self.client.list_memo(await self._owner(scope), scope=scope, tenant=self.tenant)
        except (SessionNotFound, SandboxNotFound):
            return []
        return sorted(found, key=lambda item: item.name)

    async def list_artifacts(self) -> list[Artifact]:
        try:
            found = await self.client.list_artifacts(self.name, tenant=self.tenant)
        except (SessionNotFound, SandboxNotFound):
            return []
        return sorted(found, key=lambda item: item.id)

    async def read_artifact(self, artifact: str) -> str:
        return await self.client.read_artifact(self.name, artifact, tenant=self.tenant)

    async def read_memo(self, name: str, scope: Scope, revision: int | None = None) -> Document:
        return await self.client.read_memo(
            await self._owner(scope), name, scope=scope, revision=revision, tenant=self.tenant
        )

    async def write_memo(
        self, name: str, text: str, scope: Scope, expected: int, reason: str | None, *, merge: bool = False
    ) -> Written:
        """Write if the revision is still `expected` (0: absent); else raise RevisionConflict."""

        async def write() -> Written:
            return await self.client.write_memo(
                await self._owner(scope),
                name,
                text,
                scope=scope,
                expected=expected,
                merge=merge,
                actor=self._actor,
                reason=reason,
                tenant=self.tenant,
                idempotency_key=key,
            )

        key = secrets.token_hex(16)
        return await self._in_session(write)

    async def append_memo(self, name: str, text: str, scope: Scope, reason: str | None) -> Written:
        async def append() -> Written:
            return await self.client.append_memo(
                await self._owner(scope),
                name,
                text,
                scope=scope,
                actor=self._actor,
                reason=reason,
                tenant=self.tenant,
                idempotency_key=key,
            )

        key = secrets.token_hex(16)
        return await self._in_session(append)

    async def memo_history(self, name: str, scope: Scope, limit: int) -> list[Revision]:
        return await self.client.memo_history(
            await self._owner(scope), name, scope=scope, limit=limit, tenant=self.tenant
        )

    async def restore_memo(self, name: str, revision: int, scope: Scope, reason: str | None) -> Written:
        return await self.client.restore_memo(
            await self._owner(scope),
            name,
            revision,
            scope=scope,
            actor=self._actor,
            reason=reason,
            tenant=self.tenant,
            idempotency_key=secrets.token_hex(16),
        )

    async def destroy(self) -> None:
        """Remove the session's sandbox with its files. Memory is kept."""
        await self.client.destroy_sandbox(self.name, missing_ok=True, tenant=self.tenant)

    async def _owner(self, scope: Scope) -> str:
        return self.name if scope == "session" else await self.user()

    async def _in_session(self, write: Callable[[], Awaitable[T]]) -> T:
        """Write to memory; a session that does not exist yet is made first, without a sandbox."""
        try:
            return await write()
        except (SessionNotFound, SandboxNotFound):
            await self.client.ensure_session(self.name, await self.user(), tenant=self.tenant)
        return await write()
