"""TimeoutProvider: cancels a call that takes too long; the error says whether the change may have happened.

It waits for worker threads, which cannot be cancelled; the library's own stores limit their duration themselves.
"""

from __future__ import annotations

from typing import Any

import anyio

from memo.errors import Timeout
from memo.wrap.wrapper import Call, Wrapper


class TimeoutProvider(Wrapper):
    def __init__(self, inner: object, *, read_s: float = 10.0, write_s: float = 10.0) -> None:
        super().__init__(inner)
        self._read_s = read_s
        self._write_s = write_s

    async def _pass(self, call: Call) -> Any:
        if call.verb.calls_back:
            return await call.proceed()  # the summariser takes the time, not the store
        limit_s = self._write_s if call.verb.writes else self._read_s
        with anyio.move_on_after(limit_s):
            return await call.proceed()
        unknown = "; the change may or may not have happened" if call.verb.writes else ""
        raise Timeout(
            f"cannot {call.verb.name} {call.key}: no answer after {limit_s:g} s{unknown}",
            outcome_unknown=call.verb.writes,
        )
