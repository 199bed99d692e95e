"""Sandbox calls: create, change, pause, hibernate, find and remove sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from sandboxd.client._async.calls import AsyncCalls
from sandboxd.client.request import CREATE_S, given, json_request, with_query
from sandboxd.models.sandbox import Resume, SandboxList, SandboxView


class AsyncSandboxCalls(AsyncCalls):
    async def ensure_sandbox(
        self,
        session: str,
        user: str = "default",
        *,
        agent: str | None = None,
        image: str | None = None,
        env: Mapping[str, str] | None = None,
        limits: Mapping[str, float] | None = None,
        idle_timeout_s: float | None = None,
        ttl_s: float | None = None,
        resume: Resume | None = None,
        labels: Mapping[str, str] | None = None,
        network: Literal["none"] | Mapping[str, Any] | None = None,
        from_snapshot: str | None = None,
        recreate: bool = False,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> SandboxView:
        """Create the session's sandbox, or return the existing one; `.created` says which.

        A sandbox that is hibernated or whose container died is started again with its files. If it exists with
        another image, environment or other limits, raise `Differs`; with `recreate` its container is replaced, and its
        files are kept.

        `network` is what the sandbox may reach: `{"allow": ["api.example.com", "preset:packages"], "credentials": []}`.

        With `from_snapshot` a new sandbox begins with the files of that snapshot; together with `recreate` it replaces
        an existing one with its files.
        """
        content = given(
            user=user,
            agent=agent,
            image=image,
            env=None if env is None else dict(env),
            limits=None if limits is None else dict(limits),
            idle_timeout_s=idle_timeout_s,
            ttl_s=ttl_s,
            resume=resume,
            labels=None if labels is None else dict(labels),
            network=network if network is None or isinstance(network, str) else dict(network),
            from_snapshot=from_snapshot,
            recreate=recreate or None,
        )
        target = f"{self._session_path(session, tenant)}/sandbox"
        request = json_request("PUT", target, content, key=idempotency_key, timeout_s=CREATE_S, is_idempotent=True)
        return await self._ask(SandboxView, request)

    async def get_sandbox(self, session: str, *, tenant: str | None = None) -> SandboxView:
        return await self._ask(SandboxView, json_request("GET", f"{self._session_path(session, tenant)}/sandbox"))

    async def list_sandboxes(
        self, *, labels: Mapping[str, str] | None = None, state: str | None = None, tenant: str | None = None
    ) -> list[SandboxView]:
        """Return the tenant's sandboxes, all of them or those with these labels and in this state."""
        wanted = [f"{name}={value}" for name, value in (labels or {}).items()]
        target = with_query(f"{self._tenant_path(tenant)}/sandboxes", label=wanted, state=state)
        return (await self._ask(SandboxList, json_request("GET", target))).items

    async def update_sandbox(
        self, session: str, *, tenant: str | None = None, idempotency_key: str | None = None, **changes: Any
    ) -> SandboxView:
        """Change `idle_timeout_s`, `ttl_s`, `resume`, `labels` or `network`.

        None sets a time back to the daemon's setting. A new `network` replaces the earlier one as a whole.
        A new `ttl_s` counts from now, so sending it again extends the sandbox's life.
        """
        target = f"{self._session_path(session, tenant)}/sandbox"
        return await self._ask(SandboxView, json_request("PATCH", target, changes, key=idempotency_key))

    async def pause_sandbox(
        self, session: str, *, tenant: str | None = None, idempotency_key: str | None = None
    ) -> SandboxView:
        """Freeze every process of the sandbox. Its memory is kept, and it takes no CPU time."""
        return await self._move_sandbox("pause", session, tenant, idempotency_key)

    async def resume_sandbox(
        self, session: str, *, tenant: str | None = None, idempotency_key: str | None = None
    ) -> SandboxView:
        """Let a paused sandbox continue, or start a hibernated one again with its files."""
        return await self._move_sandbox("resume", session, tenant, idempotency_key)

    async def hibernate_sandbox(
        self, session: str, *, tenant: str | None = None, idempotency_key: str | None = None
    ) -> SandboxView:
        """Remove the sandbox's container with all its processes, and keep its files."""
        return await self._move_sandbox("hibernate", session, tenant, idempotency_key)

    async def _move_sandbox(self, verb: str, session: str, tenant: str | None, key: str | None) -> SandboxView:
        target = f"{self._session_path(session, tenant)}/sandbox/{verb}"
        request = json_request("POST", target, key=key, timeout_s=CREATE_S, is_idempotent=True)
        return await self._ask(SandboxView, request)

    async def destroy_sandbox(
        self,
        session: str,
        *,
        missing_ok: bool = False,
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> None:
        """Remove the sandbox with every file in its workspace. Memory is kept.

        With `missing_ok` a missing sandbox counts as removed, so the call can be repeated.
        """
        target = with_query(f"{self._session_path(session, tenant)}/sandbox", missing_ok="true" if missing_ok else None)
        await self._send(
            json_request("DELETE", target, key=idempotency_key, timeout_s=CREATE_S, is_idempotent=missing_ok)
        )

    async def stats(self, session: str, *, tenant: str | None = None) -> Mapping[str, Any]:
        """Return the resource usage of the sandbox's container."""
        found: Mapping[str, Any] = await self._ask_json(
            json_request("GET", f"{self._session_path(session, tenant)}/stats")
        )
        return found
