"""OpenAI Agents SDK: a client whose sandboxes are sessions of the daemon.

It creates, resumes and deletes them; `openai_agents_session` is what runs in between.
"""

from __future__ import annotations

import uuid
from pathlib import PurePosixPath

from sandboxd.client import AsyncClient
from sandboxd.integrations.extra import needs_extra
from sandboxd.integrations.openai_agents_session import (
    SandboxdSandboxClientOptions,
    SandboxdSandboxSession,
    SandboxdSandboxSessionState,
)
from sandboxd.runner.inside.container_paths import WORKSPACE

with needs_extra("openai-agents"):
    from agents.sandbox.errors import ConfigurationError, ErrorCode
    from agents.sandbox.manifest import Manifest
    from agents.sandbox.session.sandbox_client import BaseSandboxClient
    from agents.sandbox.session.sandbox_session import SandboxSession
    from agents.sandbox.session.sandbox_session_state import SandboxSessionState
    from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot

__all__ = [
    "SandboxdSandboxClient",
    "SandboxdSandboxClientOptions",
    "SandboxdSandboxSession",
    "SandboxdSandboxSessionState",
]


class SandboxdSandboxClient(BaseSandboxClient[SandboxdSandboxClientOptions]):
    """`SandboxdSandboxClient(AsyncClient())` for `SandboxRunConfig(client=…)`, or to create sessions yourself."""

    backend_id = "sandboxd"
    supports_default_options = True

    def __init__(self, client: AsyncClient | None = None) -> None:
        """Without a client, the daemon is found as `AsyncClient` finds it; `close` closes its connections."""
        self._client = AsyncClient() if client is None else client

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: SandboxdSandboxClientOptions | None = None,
    ) -> SandboxSession:
        chosen = options or SandboxdSandboxClientOptions()
        number = uuid.uuid4()
        state = SandboxdSandboxSessionState(
            session_id=number,
            session=chosen.session or f"agents-{number.hex}",
            options=chosen,
            exposed_ports=chosen.exposed_ports,
            manifest=self._validate_manifest_for_create(_checked(manifest or Manifest())),
            snapshot=resolve_snapshot(snapshot, str(number)),
        )
        await self._ensure(state)
        return self._wrap_session(SandboxdSandboxSession(self._client, state))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Remove the sandbox with its files, even if its session was named; memory is kept."""
        inner = session._inner
        await inner.shutdown()
        await self._client.destroy_sandbox(inner.state.session, missing_ok=True)
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Reattach to the sandbox; one that was deleted comes back empty and is filled from the snapshot."""
        if not isinstance(state, SandboxdSandboxSessionState):
            raise TypeError(f"cannot resume a session of {state.type}: it was not made by sandboxd")
        was_created = await self._ensure(state)
        if was_created:
            state.workspace_root_ready = False
        inner = SandboxdSandboxSession(self._client, state)
        inner._set_start_state_preserved(not was_created)
        return self._wrap_session(inner)

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        return self._deserialize_session_state_payload(payload, SandboxdSandboxSessionState)

    async def close(self) -> None:
        """Close the connections. Sandboxes keep running."""
        await self._client.close()

    async def _ensure(self, state: SandboxdSandboxSessionState) -> bool:
        options = state.options
        view = await self._client.ensure_sandbox(
            state.session,
            options.user,
            image=options.image,
            limits=options.limits,
            labels=options.labels,
            idle_timeout_s=options.idle_timeout_s,
        )
        return view.created


def _checked(manifest: Manifest) -> Manifest:
    root = PurePosixPath(manifest.root)
    if root != PurePosixPath(WORKSPACE):
        raise ConfigurationError(
            message=f"cannot use {root} as the root of the manifest: a sandbox has its files in {WORKSPACE}",
            error_code=ErrorCode.INVALID_MANIFEST_PATH,
            op="start",
            context={"root": str(root)},
        )
    return manifest
