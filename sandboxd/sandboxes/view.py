"""A request for a sandbox, and the view of one: two plain values.

They are passed between the API and the manager. Neither knows the engine, the runner or the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from memo.ids import AgentId, SessionId, TenantId, UserId
from sandboxd.errors import Cause
from sandboxd.limits import Limits


@dataclass(frozen=True, slots=True)
class SandboxRequest:
    """What a caller asks for a session. The same request twice returns the same sandbox."""

    user: UserId
    agent: AgentId | None = None
    image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    network: Literal["none"] = "none"


@dataclass(frozen=True, slots=True)
class SandboxView:
    """What a caller may see of a sandbox now."""

    tenant: TenantId
    session: SessionId
    user: UserId
    agent: AgentId | None
    state: str
    engine: str
    container: str | None
    created_at: datetime
    from_pool: bool
    cause: Cause | None
    """Why its container is dead; None while it lives."""
    image: str
    limits: Limits
