"""The memory methods of `AsyncClient`. Every method sends a call of `memory_calls.py` and adds nothing to it.

Documents belong to a session, or with `scope="user"` to a user: `owner` is the id of that session or user.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeVar

from sandboxd.client import consolidation_calls
from sandboxd.client import memory_calls as calls
from sandboxd.client.calls import Call
from sandboxd.client.consolidation_calls import RUN_S
from sandboxd.client.memory_calls import Messages, Scope
from sandboxd.client.results import (
    Artifact,
    Compaction,
    Consolidated,
    ConsolidationState,
    Document,
    DocumentInfo,
    MirrorFile,
    RefusedWrite,
    Revision,
    Session,
    ShortenedMessages,
    Written,
)

T = TypeVar("T")


class AsyncMemoryClient(ABC):
    tenant: str

    @abstractmethod
    async def _send(self, call: Call[T]) -> T: ...

    async def list_memo(self, owner: str, *, scope: Scope = "session", tenant: str | None = None) -> list[DocumentInfo]:
        return await self._send(calls.list_memo(tenant or self.tenant, owner, scope))

    async def read_memo(
        self,
        owner: str,
        name: str,
        *,
        scope: Scope = "session",
        revision: int | None = None,
        tenant: str | None = None,
    ) -> Document:
        """Return the newest or the given revision; raise `memo.errors.Absent` if it was never written."""
        return await self._send(calls.read_memo(tenant or self.tenant, owner, name, scope, revision))

    async def write_memo(
        self,
        owner: str,
        name: str,
        text: str,
        *,
        scope: Scope = "session",
        expected: int | None = None,
        merge: bool = False,
        actor: str | None = None,
        reason: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Written:
        """Write if the revision is still `expected` (0: absent); else raise `RevisionConflict` with the newer text."""
        return await self._send(
            calls.write_memo(
                tenant or self.tenant,
                owner,
                name,
                text,
                scope,
                expected=expected,
                merge=merge,
                actor=actor,
                reason=reason,
                key=idempotency_key,
            )
        )

    async def append_memo(
        self,
        owner: str,
        name: str,
        text: str,
        *,
        scope: Scope = "session",
        actor: str | None = None,
        reason: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Written:
        return await self._send(
            calls.append_memo(
                tenant or self.tenant,
                owner,
                name,
                text,
                scope,
                actor=actor,
                reason=reason,
                key=idempotency_key,
            )
        )

    async def memo_history(
        self,
        owner: str,
        name: str,
        *,
        scope: Scope = "session",
        limit: int | None = None,
        tenant: str | None = None,
    ) -> list[Revision]:
        """Return the metadata of every revision, newest first."""
        return await self._send(calls.memo_history(tenant or self.tenant, owner, name, scope, limit))

    async def diff_memo(
        self,
        owner: str,
        name: str,
        *,
        before: int | None = None,
        after: int | None = None,
        scope: Scope = "session",
        tenant: str | None = None,
    ) -> str:
        """Return the unified diff between two revisions: by default the newest and the one before it."""
        return await self._send(calls.diff_memo(tenant or self.tenant, owner, name, scope, before=before, after=after))

    async def restore_memo(
        self,
        owner: str,
        name: str,
        revision: int,
        *,
        scope: Scope = "session",
        actor: str | None = None,
        reason: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Written:
        return await self._send(
            calls.restore_memo(
                tenant or self.tenant,
                owner,
                name,
                revision,
                scope,
                actor=actor,
                reason=reason,
                key=idempotency_key,
            )
        )

    async def list_artifacts(self, session: str, *, tenant: str | None = None) -> list[Artifact]:
        return await self._send(calls.list_artifacts(tenant or self.tenant, session))

    async def read_artifact(self, session: str, artifact: str, *, tenant: str | None = None) -> str:
        return await self._send(calls.read_artifact(tenant or self.tenant, session, artifact))

    async def write_artifact(
        self,
        session: str,
        artifact: str,
        text: str,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Written:
        return await self._send(calls.write_artifact(tenant or self.tenant, session, artifact, text, idempotency_key))

    async def refresh_memo_mirror(
        self, session: str, path: str | None = None, content: str | None = None, *, tenant: str | None = None
    ) -> int:
        """Refresh the session's mirror from the store; return how many files changed."""
        return await self._send(calls.refresh_mirror(tenant or self.tenant, session, path, content))

    async def refresh_user_memo_mirror_for_all_sessions(
        self, user: str, name: str, content: str | None = None, *, tenant: str | None = None
    ) -> int:
        """Refresh one document of a user in every live sandbox; return how many files changed."""
        return await self._send(calls.refresh_user_mirrors(tenant or self.tenant, user, name, content))

    async def get_mirror(self, session: str, *, tenant: str | None = None) -> list[MirrorFile]:
        return await self._send(calls.get_mirror(tenant or self.tenant, session))

    async def list_refused_writes(self, session: str, *, tenant: str | None = None) -> list[RefusedWrite]:
        """Return queued writes to the session's memory that the store rejected for good."""
        return await self._send(calls.list_refused(tenant or self.tenant, session))

    async def ensure_session(
        self,
        session: str,
        user: str = "default",
        *,
        agent: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Session:
        """Create a session without a sandbox, or return the existing one."""
        return await self._send(calls.ensure_session(tenant or self.tenant, session, user, agent, idempotency_key))

    async def get_session(self, session: str, *, tenant: str | None = None) -> Session:
        return await self._send(calls.get_session(tenant or self.tenant, session))

    async def list_sessions(self, user: str | None = None, *, tenant: str | None = None) -> list[Session]:
        return await self._send(calls.list_sessions(tenant or self.tenant, user))

    async def append_messages(
        self,
        session: str,
        messages: Messages,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        """Append all of them or none; return how many."""
        return await self._send(calls.append_messages(tenant or self.tenant, session, messages, idempotency_key))

    async def load_messages(
        self,
        session: str,
        *,
        limit: int | None = None,
        budget: int | None = None,
        full: bool = False,
        tenant: str | None = None,
    ) -> list[dict[str, Any]]:
        """Return messages, oldest first: the newest `limit`, those within a token budget, or with `full` all."""
        return await self._send(
            calls.load_messages(tenant or self.tenant, session, limit=limit, budget=budget, full=full)
        )

    async def append_turn(
        self,
        session: str,
        messages: Messages,
        usage: Mapping[str, int] | None = None,
        *,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> int:
        return await self._send(calls.append_turn(tenant or self.tenant, session, messages, usage, idempotency_key))

    async def compact_session(
        self,
        session: str,
        *,
        force: bool = False,
        trigger_tokens: int | None = None,
        compact_fraction: float | None = None,
        min_messages: int | None = None,
        workspace_snapshot: str | None = None,
        summary: str | None = None,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> Compaction:
        """Replace the oldest messages with a summary, if due. Without `summary`, an outline is generated."""
        return await self._send(
            calls.compact_session(
                tenant or self.tenant,
                session,
                force=force,
                trigger_tokens=trigger_tokens,
                compact_fraction=compact_fraction,
                min_messages=min_messages,
                workspace_snapshot=workspace_snapshot,
                summary=summary,
                key=idempotency_key,
            )
        )

    async def compact_tool_results(
        self,
        session: str,
        messages: Messages,
        *,
        max_tokens: int | None = None,
        keep_recent: int | None = None,
        recent_max_tokens: int | None = None,
        tenant: str | None = None,
    ) -> ShortenedMessages:
        """Store long tool results as artifacts, and return the messages with stubs in their place."""
        return await self._send(
            calls.compact_tool_results(
                tenant or self.tenant,
                session,
                messages,
                max_tokens=max_tokens,
                keep_recent=keep_recent,
                recent_max_tokens=recent_max_tokens,
            )
        )

    async def consolidate(
        self,
        user: str,
        *,
        dry_run: bool = False,
        tenant: str | None = None,
        timeout_s: float = RUN_S,
        idempotency_key: str | None = None,
    ) -> Consolidated:
        """Update the user's USER.md from their sessions now; raise a `consolidation.…` error if that fails."""
        return await self._send(
            consolidation_calls.consolidate(
                tenant or self.tenant, user, dry_run=dry_run, timeout_s=timeout_s, key=idempotency_key
            )
        )

    async def get_consolidation(self, user: str, *, tenant: str | None = None) -> ConsolidationState:
        return await self._send(consolidation_calls.get_consolidation(tenant or self.tenant, user))

    async def list_consolidations(self, *, tenant: str | None = None) -> list[ConsolidationState]:
        """Return the status of every user of the tenant with a past or pending run."""
        return await self._send(consolidation_calls.list_consolidations(tenant or self.tenant))
