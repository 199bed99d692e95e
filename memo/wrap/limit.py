"""LimitProvider: limits the number of concurrent and waiting calls, and the size of a text.

A call over a limit is refused before it reaches the provider. Nothing is truncated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio

from memo.errors import Unavailable
from memo.limits import StoreLimits, encode_text
from memo.messages import encode_message
from memo.wrap.wrapper import Call, Wrapper


class LimitProvider(Wrapper):
    def __init__(
        self, inner: object, *, calls: int = 32, waiting: int = 1000, limits: StoreLimits | None = None
    ) -> None:
        super().__init__(inner)
        self._slots = anyio.CapacityLimiter(calls)
        self._most_waiting = waiting
        self._limits = limits or StoreLimits()

    async def _pass(self, call: Call) -> Any:
        self._check_size(call)
        if call.verb.calls_back:
            return await call.proceed()  # its callback may call this provider, and would then wait for itself
        if self._slots.statistics().tasks_waiting >= self._most_waiting:
            raise Unavailable(
                f"cannot {call.verb.name} {call.key}: {self._most_waiting} calls are already waiting; retry later"
            )
        async with self._slots:
            return await call.proceed()

    def _check_size(self, call: Call) -> None:
        content, limits = call.content, self._limits
        if call.verb.content is None:
            return
        if call.verb.noun == "messages":
            for message in content if isinstance(content, Sequence) else ():
                encode_message(message, limits.message_bytes)
        else:
            limit = limits.artifact_bytes if call.verb.noun == "artifact" else limits.document_bytes
            encode_text(call.verb.noun, content, limit)
