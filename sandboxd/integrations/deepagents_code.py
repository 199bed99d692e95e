"""Deep Agents' command line: the sandbox provider behind `dcode --sandbox sandboxd`, found by its entry point.

A sandbox id is a session's name. A sandbox that the provider creates is removed at the end; one that was named is kept.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sandboxd.client import Client
from sandboxd.errors import NotFound
from sandboxd.integrations.deepagents import SandboxdBackend
from sandboxd.integrations.extra import needs_extra
from sandboxd.runner.inside.container_paths import WORKSPACE

with needs_extra("deepagents-code", install="deepagents-code"):
    from deepagents_code.integrations.sandbox_provider import (
        SandboxNotFoundError,
        SandboxProvider,
        SandboxProviderMetadata,
    )

T = TypeVar("T")

LABELS = {"integration": "deepagents-code"}
"""The labels of every sandbox that is created here."""


class SandboxdProvider(SandboxProvider):
    def __init__(self, client: Client | None = None) -> None:
        """Without a client, the daemon is found as `Client` finds it."""
        self._given = client

    @property
    def metadata(self) -> SandboxProviderMetadata:
        return SandboxProviderMetadata(name="sandboxd", working_dir=WORKSPACE, supports_snapshot_name=True)

    def get_or_create(
        self,
        *,
        sandbox_id: str | None = None,
        user: str = "deepagents",
        image: str | None = None,
        limits: dict[str, float] | None = None,
        snapshot: str | None = None,
        tenant: str | None = None,
    ) -> SandboxdBackend:
        """Return the sandbox of the session `sandbox_id`, running; without one, that of a new session.

        `snapshot` is the id of a snapshot with whose files the new sandbox begins; `user` is the one whose memory it
        shows.
        """
        client = self._client()

        def ensure() -> str:
            if sandbox_id is None:
                session = f"dcode-{uuid.uuid4().hex}"
                client.ensure_sandbox(
                    session, user, image=image, limits=limits, from_snapshot=snapshot, labels=LABELS, tenant=tenant
                )
                return session
            try:
                found = client.get_sandbox(sandbox_id, tenant=tenant)
            except NotFound as error:
                raise SandboxNotFoundError(
                    f"cannot use session {sandbox_id}: it has no sandbox; make one with `sandboxd create {sandbox_id}`"
                ) from error
            client.ensure_sandbox(sandbox_id, found.user, tenant=tenant)
            return sandbox_id

        return SandboxdBackend(client, _off_the_loop(ensure), tenant=tenant)

    def delete(self, *, sandbox_id: str, tenant: str | None = None, **_more: Any) -> None:
        """Remove the sandbox with its files; memory is kept."""
        self._client().destroy_sandbox(sandbox_id, missing_ok=True, tenant=tenant)  # at exit: no thread can start

    def _client(self) -> Client:
        if self._given is None:
            self._given = Client()
        return self._given


def _off_the_loop(call: Callable[[], T]) -> T:
    """Call in another thread: the command line asks for a sandbox on its event loop, where it refuses sockets."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
