"""The table: which session has which sandbox, and what can be said about all of them.

Warm sandboxes, which have no owner yet, are in the pool instead. The table starts and removes nothing.
"""

from __future__ import annotations

from memo.ids import SessionRef, TenantId, UserRef
from sandboxd.errors import InvalidRequest, SandboxNotFound
from sandboxd.history import SessionOwner
from sandboxd.models.sandbox import SandboxView
from sandboxd.sandboxes.lifecycle import State
from sandboxd.sandboxes.sandbox import Sandbox


class SandboxTable(dict[SessionRef, Sandbox]):
    def find(self, ref: SessionRef) -> Sandbox:
        """Return the session's sandbox; raise SandboxNotFound if it has none."""
        sandbox = self.get(ref)
        if sandbox is None:
            raise SandboxNotFound("cannot find a sandbox for this session; create it first")
        return sandbox

    def of_id(self, sandbox_id: str) -> Sandbox | None:
        return next((found for found in self.values() if found.record.id == sandbox_id), None)

    def named(self, session: SessionRef | str) -> SessionRef | None:
        """Return the session; None if only an id is given and no sandbox has it."""
        if isinstance(session, SessionRef) or ":" in session or session.startswith("["):
            return SessionRef.parse(session)
        found = [ref for ref in self if ref.session == session]
        if len(found) > 1:
            raise InvalidRequest(
                f"cannot use session {session}: {len(found)} tenants have one with this id; give tenant:session"
            )
        return found[0] if found else None

    def owner_of(self, ref: SessionRef) -> SessionOwner | None:
        sandbox = self.get(ref)
        if sandbox is None or sandbox.record.owner is None:
            return None
        return SessionOwner(sandbox.record.owner.user, sandbox.record.owner.agent)

    def of_tenant(self, tenant: TenantId) -> list[SandboxView]:
        return [sandbox.view() for ref, sandbox in self.items() if ref.tenant == tenant]

    def views(self) -> list[SandboxView]:
        """Return the sandboxes of every tenant."""
        return [sandbox.view() for sandbox in self.values() if sandbox.state is not State.REMOVED]

    def states(self) -> dict[str, int]:
        """Return the number of sandboxes in each state."""
        counts = dict.fromkeys((state.value for state in State if state is not State.REMOVED), 0)
        for sandbox in self.values():
            if sandbox.state is not State.REMOVED:  # removed, but still in the table
                counts[sandbox.state.value] += 1
        return counts

    def busy_users(self) -> set[UserRef]:
        """Return the users that have a call under way."""
        return {UserRef(ref.tenant, sandbox.owner.user) for ref, sandbox in self.items() if sandbox.active_calls}
