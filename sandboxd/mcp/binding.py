"""What an MCP client works with: a tenant, a session, a user, and which tools it is offered.

Parsed once, from the options of a command or from the query and headers of a request.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from memo.ids import SessionId, TenantId, UserId
from sandboxd.errors import InvalidRequest

_HEADERS = {"tenant": "x-sandboxd-tenant", "session": "x-sandboxd-session", "user": "x-sandboxd-user"}
_FLAGS = {"true": True, "1": True, "": True, "false": False, "0": False}


class ToolAccess(Enum):
    """Which tools a client is offered. It limits what a model can do, not the holder of the daemon's token."""

    READ_ONLY = "read-only"
    """Only tools that change nothing."""
    ORDINARY = "ordinary"
    """All tools of a session."""
    MANAGE = "manage"
    """Also the tools that create, copy and remove sandboxes."""

    @classmethod
    def of(cls, *, read_only: bool, manage: bool) -> ToolAccess:
        if read_only and manage:
            raise InvalidRequest("cannot use read-only and manage together: a read-only client manages nothing")
        return cls.READ_ONLY if read_only else cls.MANAGE if manage else cls.ORDINARY


@dataclass(frozen=True, slots=True)
class Binding:
    tenant: TenantId
    session: SessionId | None
    """None only for a request over HTTP that neither names a session nor belongs to an MCP session."""
    user: UserId | None = None
    """None: the user that the session already has, else `default`."""
    access: ToolAccess = ToolAccess.ORDINARY


def new_session() -> SessionId:
    """Return the id of a new session."""
    return SessionId(f"mcp-{secrets.token_hex(6)}")


def parse_binding(query: Mapping[str, str], headers: Mapping[str, str]) -> Binding:
    """Return the binding of a request; its query wins over its headers.

    Without a name, a session belongs to one MCP session. Its id is a hash, because the id of an MCP session is a
    secret of its client.
    """
    if unknown := set(query) - {*_HEADERS, "read_only", "manage"}:
        raise InvalidRequest(
            f"cannot use the query of /mcp: it has no field {sorted(unknown)[0][:40]!r}; it takes tenant, session, "
            "user, read_only and manage"
        )
    given = {name: query.get(name) or headers.get(header) for name, header in _HEADERS.items()}
    session = given["session"]
    if session is None and (mcp_session := headers.get("mcp-session-id")):
        session = f"mcp-{hashlib.sha256(mcp_session.encode()).hexdigest()[:12]}"
    return Binding(
        TenantId(given["tenant"] or "default"),
        None if session is None else SessionId(session),
        None if given["user"] is None else UserId(given["user"]),
        ToolAccess.of(read_only=_flag(query, "read_only"), manage=_flag(query, "manage")),
    )


def _flag(query: Mapping[str, str], name: str) -> bool:
    if name not in query:
        return False
    found = _FLAGS.get(query[name].lower())
    if found is None:
        raise InvalidRequest(f"cannot use the query of /mcp: {name} must be true or false")
    return found
