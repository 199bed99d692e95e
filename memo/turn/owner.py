"""Whose turn it is: the owner that a context names, and the owner that a set of callbacks was made for.

Callbacks made for an owner serve that owner only. What they leave open, the context decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from memo.errors import InvalidKey
from memo.ids import Id, SessionId, TenantId, UserId
from memo.turn.errors import ForeignOwner


class _Unnamed(str):
    """The id of a context that names none: it reads `local`, and is told from a `local` that was given by its type."""

    __slots__ = ()


LOCAL: Final = _Unnamed("local")
"""The tenant, user and session of a turn that names none."""

_KINDS: Final[dict[str, type[Id]]] = {"tenant": TenantId, "user": UserId, "session": SessionId}


@dataclass(frozen=True, slots=True)
class TurnOwner:
    tenant: str
    user: str
    session: str


class OwnerRule:
    """Decides whom a set of callbacks serves. An id that is None is left open."""

    def __init__(self, tenant: str | None, user: str | None, session: str | None) -> None:
        given = {"tenant": tenant, "user": user, "session": session}
        self._bound = {kind: str(_KINDS[kind](id)) for kind, id in given.items() if id is not None}

    def owner_of(self, ctx: Any) -> TurnOwner:
        """Return whose the context is, or raise ForeignOwner if these callbacks were made for another."""
        return TurnOwner(*(self._id(kind, getattr(ctx, kind, None)) for kind in _KINDS))

    def _id(self, kind: str, named: object) -> str:
        bound = self._bound.get(kind)
        if named is None or isinstance(named, _Unnamed):
            return str(LOCAL) if bound is None else bound
        if not isinstance(named, str):
            raise InvalidKey(f"cannot tell whose this context is: its {kind} is not text")
        if bound is not None and named != bound:
            raise ForeignOwner(
                f"cannot serve this turn: these callbacks were made for another {kind}; "
                "make callbacks for this one, or for no one in particular"
            )
        return named
