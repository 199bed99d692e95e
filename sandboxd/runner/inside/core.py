"""RunnerCore: what all parts of the runner share, and the table of calls under way. It implements no operation."""

from __future__ import annotations

from . import wire
from .counters import Counters
from .hub import Hub
from .marks import Marks
from .pipes import Leftovers
from .spawn import Spawner, find_shell
from .worker import Workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from .connection import Connection
    from .failure import Failure

    class LiveCall(Protocol):
        def take_data(self, data: bytes) -> None: ...
        def take_end(self) -> None: ...
        def take_credit(self, size_bytes: int) -> None: ...
        def cancel(self) -> None: ...


class RunnerCore:
    connection: Connection

    def __init__(self) -> None:
        self.spawner = Spawner(Marks())  # before the threads, so that its filter applies to them too
        self.hub = Hub()
        self.workers = Workers(self.hub)
        self.counters = Counters()
        self.leftovers = Leftovers(self.hub)
        self.env: dict[str, str] = {}
        self.bodies_bytes = 0
        """How many bytes of request bodies file calls hold in memory now."""
        self.removals = 0
        """How many trees are being removed now."""
        self.streams = 0
        """How many streams are open now."""
        self.archives = 0
        """How many archives are being read or extracted now."""
        self.watches = 0
        """How many directories are being watched now for calls."""
        self.shell = find_shell()
        self.calls: dict[int, LiveCall] = {}

    def forget(self, call: int, live: LiveCall) -> None:
        if self.calls.get(call) is live:
            del self.calls[call]

    def refuse(self, call: int, failure: Failure) -> None:
        self.connection.send(wire.pack(wire.ERROR, call, {"code": failure.code, "message": failure.message[:1000]}))
