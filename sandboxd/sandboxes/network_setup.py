"""The network access of sandboxes: what their options name becomes a policy, an environment and a CA bundle.

A request is checked before anything changes. A sandbox that comes up again under settings that no longer permit its
access comes up without any, and every connection is told why.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import structlog
from anyio import to_thread

from memo.ids import TenantId
from sandboxd.errors import SandboxdError
from sandboxd.events import EventBus
from sandboxd.models.network import EgressRecord
from sandboxd.models.sandbox import SandboxPatch
from sandboxd.network.egress import Egress
from sandboxd.network.environment import network_environment
from sandboxd.permissions import SHARED_FILE
from sandboxd.runner.client import RunnerClient
from sandboxd.runner.inside.container_paths import PROXY_PORT
from sandboxd.runner.protocol import RUN_TARGET
from sandboxd.sandboxes.layout import Layout
from sandboxd.sandboxes.lifecycle import Owner
from sandboxd.sandboxes.sandbox import Sandbox

BUNDLE = "ca.pem"
"""The CA bundle in a sandbox's run directory, which its container sees read-only."""

_log = structlog.get_logger()


class NetworkSetup:
    def __init__(self, egress: Egress, layout: Layout, events: EventBus, gid: int) -> None:
        self._egress = egress
        self._events = events
        self._layout = layout
        self._gid = gid

    async def check(self, tenant: TenantId, patch: SandboxPatch) -> None:
        """Refuse a request for access that the settings do not permit."""
        if patch.network is not None and patch.network != "none":
            await self._egress.plan(tenant, patch.network)

    async def prepare(self, sandbox: Sandbox) -> None:
        """Give the sandbox the access that its record names. Its run directory exists, and no command runs yet."""
        record, owner = sandbox.record, sandbox.record.owner
        if owner is None or record.options.network is None:
            if sandbox.egress is not None:
                sandbox.egress.withdraw("this sandbox has no network access")
            return
        if sandbox.egress is None:
            sandbox.egress = self._egress.open(partial(self._announce, owner))
        try:
            access = await self._egress.plan(owner.ref.tenant, record.options.network)
        except SandboxdError as error:
            _log.warning("a sandbox lost its network access", sandbox=record.id, why=str(error))
            sandbox.egress.withdraw(str(error))
            return
        bundle = await sandbox.egress.grant(access, record.secret)
        await to_thread.run_sync(self._write_bundle, self._layout.run_dir(record.id), bundle)

    async def apply(self, sandbox: Sandbox) -> None:
        """Give a running sandbox the access that its record names now."""
        await self.prepare(sandbox)
        if sandbox.runner is not None:
            await self.configure(sandbox, sandbox.runner)

    def connect(self, sandbox: Sandbox, runner: RunnerClient) -> None:
        """Set what the runner is told when it connects, and take the connections that processes of the sandbox open."""
        runner.remember(self.environment(sandbox), proxy=self.places(sandbox))
        runner.accept_streams(None if sandbox.egress is None else sandbox.egress.accept)

    async def configure(self, sandbox: Sandbox, runner: RunnerClient) -> None:
        """Tell the runner the sandbox's environment, and whether its processes may open connections."""
        runner.accept_streams(None if sandbox.egress is None else sandbox.egress.accept)
        await runner.configure(self.environment(sandbox), proxy=self.places(sandbox))

    def environment(self, sandbox: Sandbox) -> dict[str, str]:
        """Return the variables of every command: those of the network, and the owner's own, which win."""
        owner = sandbox.record.owner
        own = {} if owner is None else dict(owner.env)
        if sandbox.egress is None or sandbox.egress.access is None:
            return own
        return network_environment(PROXY_PORT, f"{RUN_TARGET}/{BUNDLE}", sandbox.egress.access.env) | own

    def places(self, sandbox: Sandbox) -> int:
        """Return how many connections the sandbox may have open; 0 without access."""
        if sandbox.record.options.network is None or sandbox.record.owner is None:
            return 0
        return self._egress.options.max_connections

    def _announce(self, owner: Owner, record: EgressRecord) -> None:
        fields = record.model_dump(exclude={"id", "at"})
        self._events.publish("egress", tenant=owner.ref.tenant, session=owner.ref.session, user=owner.user, **fields)

    def _write_bundle(self, run_dir: Path, bundle: bytes) -> None:
        place = run_dir / BUNDLE
        if place.exists() and place.read_bytes() == bundle:
            return  # after a restart it is the same, and the disk may be full
        draft = run_dir / f".{BUNDLE}"
        draft.unlink(missing_ok=True)
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, SHARED_FILE)
        with open(fd, "wb") as file:
            os.fchown(fd, -1, self._gid)
            os.fchmod(fd, SHARED_FILE)
            file.write(bundle)
        draft.rename(place)
