"""FairQueue: a queue of users that is fair between tenants.

The tenant with the fewest running users is served next; ties go to the one served longest ago. A user is in the queue
at most once, waiting or running. The queue starts no work.
"""

from __future__ import annotations

from collections import Counter, deque

import anyio

from memo.ids import TenantId, UserRef


class FairQueue:
    def __init__(self) -> None:
        self._waiting: dict[TenantId, deque[UserRef]] = {}
        self._known: set[UserRef] = set()
        self._running: Counter[TenantId] = Counter()
        self._served: dict[TenantId, int] = {}
        self._turn = 0
        self._is_closed = False
        self._changed = anyio.Event()

    def put(self, user: UserRef) -> bool:
        """Add a user. Return False if the user is already waiting or running."""
        if user in self._known:
            return False
        self._known.add(user)
        self._waiting.setdefault(user.tenant, deque()).append(user)
        self._notify()
        return True

    async def take(self) -> UserRef | None:
        """Wait for the next user and return it; None once the queue is closed and empty."""
        while not self._waiting:
            if self._is_closed:
                return None
            await self._changed.wait()
        tenant = min(self._waiting, key=lambda t: (self._running[t], self._served.get(t, 0), t))
        user = self._waiting[tenant].popleft()
        if not self._waiting[tenant]:
            del self._waiting[tenant]
        self._turn += 1
        self._served[tenant] = self._turn
        self._running[tenant] += 1
        return user

    def done(self, user: UserRef) -> None:
        self._known.discard(user)
        self._running[user.tenant] -= 1
        if not self._running[user.tenant]:
            del self._running[user.tenant]

    def drain(self) -> None:
        """Drop the waiting users and close the queue."""
        self._known.difference_update(user for waiting in self._waiting.values() for user in waiting)
        self._waiting.clear()
        self.close()

    def close(self) -> None:
        """Accept no more users; `take` returns None once the queue is empty."""
        self._is_closed = True
        self._notify()

    def __len__(self) -> int:
        return len(self._known)

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
