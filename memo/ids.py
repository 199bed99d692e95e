"""Ids, parsed once at the edge into types that cannot hold an illegal value.

An id is 1 to 128 bytes of `A-Z a-z 0-9 . _ @ + -` and starts with a letter or a digit, so it can never be
`.`, `..`, an option or a path. An illegal id is rejected, never repaired. Code downstream need not check again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Self

from memo.errors import InvalidKey

_ID = r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}"
_LEGAL = re.compile(_ID)
_LEGAL_LINES = re.compile(rf"(?:{_ID}\n)*")


class Id(str):
    """A checked string. A subclass only names what the id identifies."""

    __slots__ = ()
    noun: ClassVar[str] = "id"

    def __new__(cls, text: object) -> Self:
        if not isinstance(text, str) or _LEGAL.fullmatch(text) is None:
            raise InvalidKey(
                f"cannot use this {cls.noun}: it must be 1 to 128 characters of A-Z a-z 0-9 . _ @ + - "
                "and start with a letter or a digit"
            )
        return super().__new__(cls, text)


class TenantId(Id):
    __slots__ = ()
    noun = "tenant id"


class UserId(Id):
    __slots__ = ()
    noun = "user id"


class AgentId(Id):
    __slots__ = ()
    noun = "agent id"


class SessionId(Id):
    __slots__ = ()
    noun = "session id"


class OwnerId(Id):
    """A session id or a user id; the scope that accompanies it says which."""

    __slots__ = ()
    noun = "owner id"


class ToolCallId(Id):
    __slots__ = ()
    noun = "tool call id"


def are_legal(texts: Collection[str]) -> bool:
    """Return whether all texts are legal ids, without constructing them: for lists of thousands."""
    lines = "".join([f"{text}\n" for text in texts])
    return lines.count("\n") == len(texts) and _LEGAL_LINES.fullmatch(lines) is not None


@dataclass(frozen=True, slots=True, order=True)
class SessionRef:
    """One session of one tenant. Its text is `tenant:session`."""

    tenant: TenantId
    session: SessionId

    def __str__(self) -> str:
        return f"{self.tenant}:{self.session}"

    @classmethod
    def of(cls, tenant: str, session: str) -> Self:
        return cls(TenantId(tenant), SessionId(session))

    @classmethod
    def parse(cls, text: str | SessionRef) -> SessionRef:
        """Parse `tenant:session` or the JSON array `["tenant","session"]`; a SessionRef is returned unchanged."""
        if isinstance(text, SessionRef):
            return text
        if not isinstance(text, str):
            raise InvalidKey("cannot parse this session reference: expected tenant:session")
        if text.startswith("["):
            try:
                parts = json.loads(text)
            except (ValueError, RecursionError):
                raise InvalidKey("cannot parse this session reference: not a JSON array of two ids") from None
        else:
            parts = text.split(":")
        if not isinstance(parts, list) or len(parts) != 2:
            raise InvalidKey("cannot parse this session reference: expected tenant:session")
        return cls(TenantId(parts[0]), SessionId(parts[1]))


@dataclass(frozen=True, slots=True, order=True)
class UserRef:
    """One user of one tenant."""

    tenant: TenantId
    user: UserId

    def __str__(self) -> str:
        return f"{self.tenant}:{self.user}"

    @classmethod
    def of(cls, tenant: str, user: str) -> Self:
        return cls(TenantId(tenant), UserId(user))
