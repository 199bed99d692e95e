"""Calls to a store: one deadline and one mapping of errors for every method of the provider and of its parts.

A provider is third-party code: it may lack a method, never answer, or raise anything. Answers are returned unchecked;
`StoreClient` checks them.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from typing import Any, Literal

import anyio

from memo.errors import Corrupt, MemoError, ProviderError, Unsupported
from memo.ids import SessionRef
from sandboxd.errors import StoreCorrupt, StoreUnavailable
from sandboxd.memory.outcomes import WriteOutcomeUnknown

_MOST_PARTS = 4096
PartFactory = Literal["session_trace_store", "orchestration_persistence"]
"""The methods with which a store makes the parts of one session."""


class StoreCalls:
    def __init__(self, store: object, timeout_s: float) -> None:
        self.store: Any = store
        self._timeout_s = timeout_s
        self._parts: OrderedDict[tuple[str, SessionRef], object] = OrderedDict()

    def has(self, method: str) -> bool:
        return callable(getattr(self.store, method, None))

    def takes(self, method: str, parameter: str) -> bool:
        """Return whether a method of the store has this parameter."""
        function = getattr(self.store, method, None)
        try:
            return callable(function) and parameter in inspect.signature(function).parameters
        except (TypeError, ValueError):  # a callable without a signature
            return False

    async def call(
        self, what: str, method: str, *args: Any, writes: bool = False, more_s: float = 0, **named: Any
    ) -> Any:
        """Call a method of the store. Its refusals (InvalidKey, RevisionConflict, …) pass through unchanged.

        With `writes`, a call that may have changed something before it failed raises WriteOutcomeUnknown. `more_s` is
        added to the deadline, for a call in which the store waits for something else.
        """
        if not self.has(method):
            raise Unsupported(f"cannot {what}: this store has no {method}")
        return await self._ask(self.store, what, method, *args, writes=writes, more_s=more_s, **named)

    async def call_part(
        self, factory: PartFactory, session: SessionRef, method: str, *args: Any, writes: bool = False
    ) -> Any:
        """Call a method of a session's traces or orchestration, which the store makes once for each session."""
        what = method.replace("_", " ")
        part = self._part(factory, session, what)
        if not callable(getattr(part, method, None)):
            raise Unsupported(f"cannot {what}: this store's {factory} has no {method}")
        return await self._ask(part, what, method, *args, writes=writes)

    def part_can(self, factory: PartFactory, session: SessionRef, method: str) -> bool:
        """Return whether the session's part has an optional method."""
        return callable(getattr(self._part(factory, session, method), method, None))

    def _part(self, factory: PartFactory, session: SessionRef, what: str) -> object:
        known = self._parts.get((factory, session))
        if known is not None:
            return known
        if not self.has(factory):
            raise Unsupported(f"cannot {what}: this store has no {factory}")
        try:
            part: object = getattr(self.store, factory)(session)
        except MemoError:
            raise
        except Exception as error:  # third-party code may raise anything, and its message may contain anything
            raise StoreUnavailable(f"cannot {what}: the store failed with {type(error).__name__}") from error
        self._parts[factory, session] = part
        if len(self._parts) > _MOST_PARTS:
            self._parts.popitem(last=False)
        return part

    async def _ask(
        self,
        target: object,
        what: str,
        method: str,
        *args: Any,
        writes: bool = False,
        more_s: float = 0,
        **named: Any,
    ) -> Any:
        try:
            with anyio.fail_after(self._timeout_s + more_s):
                answer = getattr(target, method)(*args, **named)
                if not inspect.isawaitable(answer):
                    raise unusable(what, f"{method} is not asynchronous")
                return await answer
        except TimeoutError as error:
            if writes:
                raise WriteOutcomeUnknown(
                    f"cannot {what}: the store did not answer within {self._timeout_s:g} s, "
                    "and the change may or may not have happened"
                ) from error
            raise StoreUnavailable(f"cannot {what}: the store did not answer within {self._timeout_s:g} s") from error
        except ProviderError as error:
            kind: type[StoreUnavailable] = StoreUnavailable
            if writes and error.outcome_unknown:
                kind = WriteOutcomeUnknown
            elif isinstance(error, Corrupt):
                kind = StoreCorrupt
            raise kind(f"cannot {what}: {str(error).removeprefix('cannot ')}") from error
        except (MemoError, StoreUnavailable):
            raise
        except Exception as error:  # third-party code may raise anything, and its message may contain anything
            raise StoreUnavailable(f"cannot {what}: the store failed with {type(error).__name__}") from error


def unusable(what: str, why: str) -> StoreUnavailable:
    """Return the error for an answer that fails a check."""
    return StoreUnavailable(f"cannot {what}: the store's answer cannot be used: {why}")
