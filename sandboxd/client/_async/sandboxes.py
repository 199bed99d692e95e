"""Sandbox calls: create, find and remove sandboxes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sandboxd.client._async.calls import AsyncCalls
from sandboxd.client.request import CREATE_S, given, json_request, with_query
from sandboxd.models.sandbox import SandboxList, SandboxView


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
        tenant: str | None = None,
        idempotency_key: str | None = None,
    ) -> SandboxView:
        """Create the session's sandbox, or return the existing one; `.created` says which.

        A sandbox whose container died is restarted with its files.
        """
        content = given(
            user=user,
            agent=agent,
            image=image,
            env=None if env is None else dict(env),
            limits=None if limits is None else dict(limits),
        )
        target = f"{self._session_path(session, tenant)}/sandbox"
        request = json_request("PUT", target, content, key=idempotency_key, timeout_s=CREATE_S, is_idempotent=True)
        return await self._ask(SandboxView, request)

    async def get_sandbox(self, session: str, *, tenant: str | None = None) -> SandboxView:
        return await self._ask(SandboxView, json_request("GET", f"{self._session_path(session, tenant)}/sandbox"))

    async def list_sandboxes(self, *, tenant: str | None = None) -> list[SandboxView]:
        return (await self._ask(SandboxList, json_request("GET", f"{self._tenant_path(tenant)}/sandboxes"))).items

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
