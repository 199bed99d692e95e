# Generated from sandboxd/client/_async/sandbox.py by scripts/unasync.py; change that file and run `make client`.
"""`Sandbox`: the sandbox of one session as an object, with the calls that concern it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from sandboxd.client._sync.client import Client
from sandboxd.client._sync.commands import SandboxCommands
from sandboxd.client._sync.contexts import SandboxContexts
from sandboxd.client._sync.documents import SandboxMemo
from sandboxd.client._sync.files import SandboxFiles
from sandboxd.client._sync.ports import SandboxPorts
from sandboxd.client._sync.processes import SandboxPty
from sandboxd.client._sync.tools import SandboxTools
from sandboxd.client.errors import malformed_answers
from sandboxd.errors import InvalidRequest
from sandboxd.models.fork import ForkMemory
from sandboxd.models.network import EgressRecord
from sandboxd.models.sandbox import Resume, SandboxView, Stats
from sandboxd.models.snapshot import SnapshotView


class Sandbox:
    """`with Sandbox.create("session", user="ada") as sandbox:`

    Leaving the block closes the connections that `create` or `connect` opened. The sandbox keeps running; `kill`
    removes it.
    """

    def __init__(self, client: Client, view: SandboxView, *, owns_client: bool = False) -> None:
        """Use the sandbox of a record; `create` and `connect` find the record first."""
        self.client = client
        self.view = view
        """The sandbox's record when it was created or found."""
        self._owns_client = owns_client
        session, tenant = view.session, view.tenant
        self.commands = SandboxCommands(client, session, tenant)
        self.contexts = SandboxContexts(client, session, tenant)
        self.files = SandboxFiles(client, session, tenant)
        self.memo = SandboxMemo(client, session, tenant, view.user)
        self.ports = SandboxPorts(client, session, tenant)
        self.pty = SandboxPty(client, session, tenant)
        self.tools = SandboxTools(client, session, tenant)

    @classmethod
    def create(
        cls,
        session: str,
        *,
        user: str = "default",
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
        client: Client | None = None,
        url: str | None = None,
        token: str | None = None,
        socket: Path | str | None = None,
        tenant: str | None = None,
    ) -> Self:
        """Create the session's sandbox, or return the existing one; `view.created` says which.

        Without `client`, the daemon is found as `Client` finds it. The other arguments are those of
        `Client.ensure_sandbox`.
        """
        found = _find_client(client, url, token, socket, tenant)
        try:
            view = found.ensure_sandbox(
                session,
                user,
                agent=agent,
                image=image,
                env=env,
                limits=limits,
                idle_timeout_s=idle_timeout_s,
                ttl_s=ttl_s,
                resume=resume,
                labels=labels,
                network=network,
                from_snapshot=from_snapshot,
                recreate=recreate,
                tenant=tenant,
            )
        except BaseException:
            if client is None:
                found.close()
            raise
        return cls(found, view, owns_client=client is None)

    @classmethod
    def connect(
        cls,
        session: str,
        *,
        client: Client | None = None,
        url: str | None = None,
        token: str | None = None,
        socket: Path | str | None = None,
        tenant: str | None = None,
    ) -> Self:
        """Return the sandbox that a session already has; raise `SandboxNotFound` if it has none."""
        found = _find_client(client, url, token, socket, tenant)
        try:
            view = found.get_sandbox(session, tenant=tenant)
        except BaseException:
            if client is None:
                found.close()
            raise
        return cls(found, view, owns_client=client is None)

    @property
    def session(self) -> str:
        return self.view.session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections that were opened for this object. The sandbox keeps running."""
        if self._owns_client:
            self.client.close()

    def get_view(self) -> SandboxView:
        """Return the sandbox's record as it is now."""
        self.view = self.client.get_sandbox(self.session, tenant=self.view.tenant)
        return self.view

    def stats(self) -> Stats:
        """Return the resource usage of the sandbox's container."""
        found = self.client.stats(self.session, tenant=self.view.tenant)
        with malformed_answers():
            return Stats.model_validate(found)

    def update(self, **changes: Any) -> SandboxView:
        """Change `idle_timeout_s`, `ttl_s`, `resume`, `labels` or `network`; see `Client.update_sandbox`."""
        self.view = self.client.update_sandbox(self.session, tenant=self.view.tenant, **changes)
        return self.view

    def pause(self) -> SandboxView:
        """Freeze every process of the sandbox. Its memory is kept, and it takes no CPU time."""
        self.view = self.client.pause_sandbox(self.session, tenant=self.view.tenant)
        return self.view

    def resume(self) -> SandboxView:
        """Continue after a pause, or start again with the same files after hibernation."""
        self.view = self.client.resume_sandbox(self.session, tenant=self.view.tenant)
        return self.view

    def hibernate(self) -> SandboxView:
        """Remove the container with all its processes, and keep the files."""
        self.view = self.client.hibernate_sandbox(self.session, tenant=self.view.tenant)
        return self.view

    def snapshot(self, name: str | None = None) -> SnapshotView:
        """Copy the workspace as it is now; the snapshot outlives the sandbox. `create(from_snapshot=…)` uses it."""
        return self.client.take_snapshot(self.session, name, tenant=self.view.tenant)

    def egress(self, since: int = 0) -> list[EgressRecord]:
        """Return the connections that the sandbox opened, or tried to open, oldest first."""
        return (self.client.list_egress(self.session, since, tenant=self.view.tenant)).items

    def append_trace(self, envelopes: Sequence[Mapping[str, Any]]) -> int:
        """Append envelopes to the session's trace, in this order; return how many."""
        return self.client.append_trace(self.session, envelopes, tenant=self.view.tenant)

    def load_trace(self, *, after: int = 0, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the envelopes of the session's trace, oldest first: the daemon's and your own."""
        return self.client.load_trace(self.session, after=after, limit=limit, tenant=self.view.tenant)

    def snapshots(self) -> list[SnapshotView]:
        """Return the session's snapshots, oldest first."""
        return self.client.list_snapshots(self.session, tenant=self.view.tenant)

    def fork(
        self, new: str | Sequence[str] | None = None, *, count: int | None = None, memory: ForkMemory = "copy"
    ) -> list[Sandbox]:
        """Make new sessions as copies of this one; see `Client.fork`. They use this object's client."""
        made = self.client.fork(self.session, new, count=count, memory=memory, tenant=self.view.tenant)
        return [Sandbox(self.client, view) for view in made.items]

    def kill(self) -> None:
        """Remove the sandbox with every file in its workspace. Memory is kept."""
        self.client.destroy_sandbox(self.session, missing_ok=True, tenant=self.view.tenant)


def _find_client(
    client: Client | None,
    url: str | None,
    token: str | None,
    socket: Path | str | None,
    tenant: str | None,
) -> Client:
    if client is None:
        return Client(socket, url=url, token=token, tenant=tenant or "default")
    if url is not None or token is not None or socket is not None:
        raise InvalidRequest("cannot use url, token or socket with a client: the client already has an address")
    return client
