"""RetryProvider: retries calls that failed with a retryable error.

A write whose outcome is unknown is retried only if it carries a request id, by which the store recognises the retry.
"""

from __future__ import annotations

from typing import Any

from memo.errors import MemoError, Unsupported
from memo.wrap.wrapper import Call, Wrapper


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
        try:
            import stamina
        except ModuleNotFoundError:
            raise Unsupported("cannot retry calls: the package stamina is missing; install sandboxd[retry]") from None
        self._retry_context = stamina.retry_context
        self._attempts = attempts
        self._total_s = total_s
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s

    async def _pass(self, call: Call) -> Any:
        if call.verb.calls_back:
            return await call.proceed()  # the caller's own code may have failed, and must not run twice
        async for attempt in self._retry_context(
            on=lambda error: is_retryable(error, call),
            attempts=self._attempts,
            timeout=self._total_s,
            wait_initial=self._first_wait_s,
            wait_max=self._longest_wait_s,
            wait_jitter=self._first_wait_s,
        ):
            with attempt:
                result = await call.proceed()
        return result


def is_retryable(error: Exception, call: Call) -> bool:
    if not isinstance(error, MemoError) or not error.retryable:
        return False
    return call.is_safe_to_repeat or not getattr(error, "outcome_unknown", False)
