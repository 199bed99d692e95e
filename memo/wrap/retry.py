"""Retry: try again what may work the next time, and only that.

Only an error that is marked retryable; and a write whose outcome is unknown only if it carries a request, so that
the store can tell the second try from a second write. Never changes what is written.
"""

from __future__ import annotations

from typing import Any

import stamina

from memo.errors import MemoError
from memo.wrap.verbs import Call
from memo.wrap.wrapper import Wrapper


class RetryProvider(Wrapper):
    def __init__(
        self,
        inner: object,
        *,
        attempts: int = 5,
        total_s: float = 30.0,
        first_wait_s: float = 0.05,
        longest_wait_s: float = 2.0,
    ) -> None:
        super().__init__(inner)
        self._attempts = attempts
        self._total_s = total_s
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s

    async def _pass(self, call: Call) -> Any:
        if call.verb.calls_back:
            return await call.proceed()  # the caller's own code may be what failed, and is not ours to run twice
        async for attempt in stamina.retry_context(
            on=lambda error: is_worth_repeating(error, call),
            attempts=self._attempts,
            timeout=self._total_s,
            wait_initial=self._first_wait_s,
            wait_max=self._longest_wait_s,
            wait_jitter=self._first_wait_s,
        ):
            with attempt:
                result = await call.proceed()
        return result


def is_worth_repeating(error: Exception, call: Call) -> bool:
    if not isinstance(error, MemoError) or not error.retryable:
        return False
    return call.is_safe_to_repeat or not getattr(error, "outcome_unknown", False)
