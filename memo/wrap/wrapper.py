"""What every wrapper is: a provider around a provider, with exactly the methods of the one inside.

A capability that is not inside is not outside either, so a wrapper of a read-only provider is read-only. What is no
verb, such as the change feed, is handed through untouched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from memo.provider import capabilities_of
from memo.wrap.verbs import VERBS, Call, Verb


class Wrapper(ABC):
    def __init__(self, inner: object) -> None:
        capabilities_of(inner)  # what is no provider is refused here, not at its first use
        self._inner = inner

    @abstractmethod
    async def _pass(self, call: Call) -> Any:
        """Make the call, in this wrapper's own way."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # Python looks special methods up on the class; finding them here would only mislead
            raise AttributeError(name)
        found = getattr(self._inner, name)
        verb = VERBS.get(name)
        return found if verb is None else partial(self._run, verb, found)

    async def _run(self, verb: Verb, method: Callable[..., Awaitable[Any]], /, *args: Any, **named: Any) -> Any:
        return await self._pass(Call(verb, method, args, named))
