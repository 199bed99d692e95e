"""Memory budget: how much memory calls may hold at once, in total and per tenant. Calls never queue here.

A call reserves memory for its body and its largest possible answer before it runs, releases what it does not need, and
releases the rest once its answer is sent. A tenant may hold at most three times what is free: three quarters of the
budget if no other tenant is active, less otherwise, so there is always room for one more tenant.
"""

from __future__ import annotations

import anyio
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from sandboxd.api.admission import tenant_in
from sandboxd.errors import Busy, InvalidRequest

MIB = 1024 * 1024
MEMORY_BYTES = 1024 * MIB
"""Enough for about 500 concurrent commands with the default output limit: one in each sandbox."""
SMALL_BYTES = 65_536
"""Bodies and answers up to this size are not counted: the limit on calls bounds them."""
STREAM_BYTES = 524_288
"""What a streamed file or command holds: the runner's window and the chunk being sent to the client."""

_PER_FREE = 3
_ALLOTMENT = "sandboxd.allotment"


class ByteBudget:
    """Counts the bytes that calls hold. It runs on one event loop, so it needs no locks."""

    def __init__(self, most: int = MEMORY_BYTES) -> None:
        self._most = most
        self._most_each = most * _PER_FREE // (_PER_FREE + 1)
        self._held: dict[str, int] = {}
        self._total = 0
        self._rendering = anyio.Lock()

    @property
    def total(self) -> int:
        return self._total

    def take(self, tenant: str, size_bytes: int) -> None:
        """Reserve memory; raise Busy if it does not fit now, InvalidRequest if it never could."""
        held = self._held.get(tenant, 0) + size_bytes
        if size_bytes > self._most_each:
            raise InvalidRequest(
                f"cannot accept this call: it may hold {size_bytes} bytes in memory, and all calls of a tenant "
                f"together may hold {self._most_each}; split it into smaller calls"
            )
        free = self._most - self._total - size_bytes
        if held > _PER_FREE * free:
            raise Busy(
                f"cannot accept this call: it may hold {size_bytes} bytes in memory, and calls under way hold "
                f"{self._total} of {self._most}; try again"
            )
        self._held[tenant] = held
        self._total += size_bytes

    def give_back(self, tenant: str, size_bytes: int) -> None:
        left = self._held[tenant] - size_bytes
        if left:
            self._held[tenant] = left
        else:
            del self._held[tenant]
        self._total -= size_bytes

    async def turn(self) -> None:
        """Wait for a turn to render a chunk: all answers together render one per iteration of the event loop."""
        async with self._rendering:
            pass


class Allotment:
    """The memory of one call. Closed once its answer is sent."""

    __slots__ = ("_budget", "_held", "_tenant")

    def __init__(self, budget: ByteBudget, tenant: str) -> None:
        self._budget = budget
        self._tenant = tenant
        self._held = 0

    def take(self, size_bytes: int) -> None:
        """Reserve more memory for this call, or raise Busy."""
        if size_bytes:
            self._budget.take(self._tenant, size_bytes)
            self._held += size_bytes

    def take_large(self, size_bytes: int) -> None:
        """Reserve memory for this call unless the size is small."""
        if size_bytes > SMALL_BYTES:
            self.take(size_bytes)

    def shrink(self, size_bytes: int) -> None:
        """Release everything above this size."""
        if self._held > size_bytes:
            self._budget.give_back(self._tenant, self._held - size_bytes)
            self._held = size_bytes

    async def turn(self) -> None:
        await self._budget.turn()


class BudgetMiddleware:
    """Gives every request its allotment, and releases it once the answer has been sent."""

    def __init__(self, app: ASGIApp, budget: ByteBudget) -> None:
        self._app = app
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        memory = Allotment(self._budget, tenant_in(scope) or "")
        scope[_ALLOTMENT] = memory
        try:
            await self._app(scope, receive, send)
        finally:
            memory.shrink(0)


def allotment(request: Request) -> Allotment:
    """Return the allotment of the call that this request makes."""
    return allotment_of(request.scope)


def allotment_of(scope: Scope) -> Allotment:
    found: Allotment = scope[_ALLOTMENT]
    return found
