"""EventHistory: the daemon's events beyond the bus. It prepares what is published, keeps it, and feeds the traces.

It owns the log and the recorder. What it cannot keep is counted and never fails a call.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Self, cast

import anyio
import structlog

from memo.backoff import Backoff
from memo.ids import SessionId, SessionRef, TenantId
from sandboxd.errors import HostError
from sandboxd.events import EventBus, Excerpt, Fields
from sandboxd.history.event_filter import EventFilter
from sandboxd.history.event_log import EventLog
from sandboxd.history.text_rules import TextRules
from sandboxd.history.trace_recorder import SessionOwner, TraceRecorder, can_trace
from sandboxd.history_settings import HistoryOptions
from sandboxd.metrics import HistoryFigures
from sandboxd.models.event import Event
from sandboxd.retries import Retries

_COLLECT_S: Final = 0.5
"""How long events are collected before they are written together: each write waits for the disk."""
_PRUNE_S: Final = 600.0
"""How often old events are looked for while nothing happens."""

_log = structlog.get_logger()


class EventHistory(anyio.AsyncContextManagerMixin):
    """The keeper of a bus. Use it as an async context manager, before anything is published."""

    def __init__(
        self,
        directory: Path,
        options: HistoryOptions,
        bus: EventBus,
        *,
        store: object = None,
        store_timeout_s: float = 10.0,
        owner_of: Callable[[SessionRef], SessionOwner | None] = lambda ref: None,
    ) -> None:
        self.log = EventLog(directory, options)
        self._options = options
        self._bus = bus
        self._rules = TextRules(options.redact)
        self._has_known = False
        self._owner_of = owner_of
        self.recorder: TraceRecorder | None = None
        """None if no traces are written."""
        if options.traces and can_trace(store):
            self.recorder = TraceRecorder(self.log, store, timeout_s=store_timeout_s, owner_of=owner_of)
        elif options.traces and store is not None:
            _log.info("events are not added to traces: the store keeps no traces")

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        await self.log.open(self._bus.next_id)
        self._bus.keep_in(self, self.log.last_id)
        try:
            yield self
        finally:
            self._bus.keep_in(None)
            await self.log.aclose()

    async def run(self) -> None:
        """Write events to the database, and to traces, until cancelled. For that the sandboxes must be known."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._write)
            tasks.start_soon(self._record_traces)

    async def _record_traces(self) -> None:
        if self.recorder is not None:
            await self.recorder.run()
        elif self.log.last_id > self.log.traced_id:
            try:  # traces that are switched on later begin then
                await self.log.set_traced(self.log.last_id)
            except HostError as error:
                _log.warning("cannot skip earlier events for traces", why=str(error))

    async def find(
        self, wanted: EventFilter, *, limit: int, after: int | None = None, newest_first: bool = False
    ) -> list[Event]:
        """Return matching events in order of their ids, beginning after this id in that order."""
        return await self.log.find(wanted, limit=limit, after=after, newest_first=newest_first)

    def hide(self, values: Iterable[str]) -> None:
        """Never keep these values in any text of an event from now on."""
        self._rules.hide(values)
        self._has_known = True

    def prepare(self, fields: Fields) -> None:
        command = fields.get("command")
        if isinstance(command, str | tuple):
            if self._options.commands:
                fields["command"] = self._rules.command(command)
            else:
                del fields["command"]
        if self._has_known:
            for name, value in fields.items():
                if isinstance(value, str) and name != "command":
                    fields[name] = self._rules.hidden(value)
        if "user" not in fields and (owner := self._owner(fields)) is not None:
            fields["user"] = owner.user

    def keep(self, number: int, kind: str, at: datetime, fields: Fields, output: Excerpt | None) -> None:
        detail = None
        if output is not None and output.head and self.recorder is not None and self._options.commands:
            detail = {"output": self._rules.output(output)}
        self.log.record(number, kind, at, fields, detail)

    def figures(self) -> HistoryFigures:
        if self.recorder is None:
            return HistoryFigures(self.log.count, self.log.dropped)
        lost = {**self.recorder.given_up, "backlog": self.log.untraced_removed}
        return HistoryFigures(self.log.count, self.log.dropped, self.recorder.written, lost)

    def _owner(self, fields: Fields) -> SessionOwner | None:
        tenant, session = fields.get("tenant"), fields.get("session")
        if isinstance(tenant, str) and isinstance(session, str):
            return self._owner_of(SessionRef(cast(TenantId, tenant), cast(SessionId, session)))
        return None

    async def _write(self) -> None:
        retries = Retries(Backoff(first=timedelta(seconds=1), longest=timedelta(minutes=1)))
        while True:
            with anyio.move_on_after(_PRUNE_S):
                await self.log.unwritten.wait()
                await anyio.sleep(_COLLECT_S)
            try:
                await self.log.write()
                retries.reset()
            except HostError as error:
                if retries.is_first:
                    _log.warning("events wait to be written", why=str(error))
                await retries.wait()
