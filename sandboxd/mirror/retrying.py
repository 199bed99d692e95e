"""How long to wait before the next try. Nothing else."""

from __future__ import annotations

import anyio

_FIRST_S = 0.1
_MOST_S = 2.0


class Backoff:
    """Waits longer each time, up to two seconds: a healed store is noticed within that."""

    def __init__(self) -> None:
        self._next_s = _FIRST_S

    @property
    def is_first(self) -> bool:
        return self._next_s == _FIRST_S

    def reset(self) -> None:
        self._next_s = _FIRST_S

    async def wait(self) -> None:
        seconds, self._next_s = self._next_s, min(self._next_s * 2, _MOST_S)
        await anyio.sleep(seconds)
