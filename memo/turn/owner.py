"""The owner of a turn: as named by a context, and as bound to a set of callbacks.

Bound callbacks serve that owner only. Ids that they leave unbound are taken from the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from memo.errors import InvalidKey
from memo.ids import Id, SessionId, TenantId, UserId
from memo.turn.errors import ForeignOwner


class _Unnamed(str):
    """The default id: its text is `local`, and its type distinguishes it from a `local` given by the caller."""

    __slots__ = ()


LOCAL: Final = _Unnamed("local")
"""The tenant, user and session of a turn that does not name them."""

_KINDS: Final[dict[str, type[Id]]] = {"tenant": TenantId, "user": UserId, "session": SessionId}


@dataclass(frozen=True, slots=True)
class TurnOwner:
    tenant: str
    user: str
    session: str


class OwnerRule:
    """Decides which owners a set of callbacks serves. An id of None is unbound."""

    def __init__(self, tenant: str | None, user: str | None, session: str | None) -> None:
        given = {"tenant": tenant, "user": user, "session": session}
        self._bound = {kind: str(_KINDS[kind](id)) for kind, id in given.items() if id is not None}

    def owner_of(self, ctx: Any) -> TurnOwner:
        """Return the owner of the context, or raise ForeignOwner if the callbacks are bound to another."""
        return TurnOwner(*(self._id(kind, getattr(ctx, kind, None)) for kind in _KINDS))

    def _id(self, kind: str, named: object) -> str:
        bound = self._bound.get(kind)
        if named is None or isinstance(named, _Unnamed):
            return str(LOCAL) if bound is None else bound
        if not isinstance(named, str):
            raise InvalidKey(f"cannot determine the owner of this context: its {kind} is not a string")
        if bound is not None and named != bound:
            raise ForeignOwner(
                f"cannot serve this turn: these callbacks are bound to another {kind}; "
                f"make callbacks for this {kind}, or leave {kind} unbound"
            )
        return named
