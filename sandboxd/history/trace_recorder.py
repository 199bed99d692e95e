"""TraceRecorder: adds the events of a session to the session's trace in the store, each once and in order.

It reads the durable log after a durable cursor, so a call never waits for it, and neither a kill nor an outage of the
store loses or repeats an envelope. What cannot be written for ever is given up and counted. It never brings back a
session that was removed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeVar, cast

import anyio
import structlog
from pydantic_core import from_json

from memo.errors import Corrupt, InvalidContent, InvalidKey, MemoError, ProviderError, SessionTaken, TooLarge
from memo.ids import AgentId, SessionRef, UserId
from memo.traces import Envelope, SessionTraceStore
from sandboxd.errors import HostError
from sandboxd.history.event_log import EventLog, KeptEvent, moment
from sandboxd.retries import Retries

SOURCE: Final = "sandboxd"
BATCH: Final = 500
"""The most envelopes that may be written before the cursor follows, and so the most that a kill leaves in doubt."""
MAX_STRIKES: Final = 5
"""How often writing to one session may fail while others succeed, before its envelopes are given up."""
_STOP_AFTER: Final = 3
"""A pass ends after this many failures without a success: the store does not answer."""
_AT_ONCE: Final = 100
"""The most envelopes in one call: encoding them must not hold up the event loop."""
_MOST_OPEN: Final = 4096
_DEFAULT_AGENT: Final = AgentId("default")

_log = structlog.get_logger()

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionOwner:
    user: UserId
    agent: AgentId | None


class _Settling(Enum):
    WRITTEN = auto()
    GIVEN_UP = auto()
    FAILED = auto()


class TraceRecorder:
    """`owner_of` returns the owner of a session that has a sandbox; such a session may be missing in the store."""

    def __init__(
        self, log: EventLog, store: object, *, timeout_s: float, owner_of: Callable[[SessionRef], SessionOwner | None]
    ) -> None:
        self._events = log
        self._store: Any = store
        self._timeout_s = timeout_s
        self._owner_of = owner_of
        self._settled: set[int] = set()
        """Ids after the cursor that need nothing more."""
        self._doubtful: set[int] = set()
        """Ids that may be in their trace already."""
        self._traces: OrderedDict[SessionRef, object] = OrderedDict()
        self._strikes: Counter[SessionRef] = Counter()
        self._is_waiting = False
        self.written = 0
        self.given_up: Counter[str] = Counter()
        """Envelopes by the reason why they were given up."""

    async def run(self) -> None:
        """Record until cancelled."""
        retries = Retries()
        is_first = True
        while True:
            news = self._events.written
            try:
                batch = await self._events.untraced(BATCH)
                if is_first:
                    self._doubtful = {entry.id for entry in batch}
                    is_first = False
                is_complete = await self._record(batch)
            except HostError as error:
                _log.warning("cannot read the log of events for the traces", why=str(error))
                await retries.wait()
                continue
            if not is_complete:
                await retries.wait()
                continue
            retries.reset()
            self._is_waiting = False
            if len(batch) < BATCH:
                await news.wait()

    async def _record(self, batch: list[KeptEvent]) -> bool:
        """Write what is unsettled, move the cursor, and return whether the whole batch is settled."""
        failed: set[SessionRef] = set()
        has_success = False
        for ref, entries in self._unsettled(batch).items():
            outcome = await self._settle(ref, entries)
            if outcome is _Settling.FAILED:
                failed.add(ref)
                if not has_success and len(failed) >= _STOP_AFTER:
                    break
            elif outcome is _Settling.WRITTEN:
                has_success = True
                self._strikes.pop(ref, None)
        if has_success:
            self._blame(failed, batch)
        await self._move_cursor(batch)
        return not self._unsettled(batch)

    def _unsettled(self, batch: list[KeptEvent]) -> dict[SessionRef, list[KeptEvent]]:
        found: dict[SessionRef, list[KeptEvent]] = {}
        for entry in batch:
            if entry.id in self._settled:
                continue
            try:
                ref = SessionRef.of(entry.tenant or "", entry.session or "")
            except InvalidKey:
                self._give_up([entry], "refused")
            else:
                found.setdefault(ref, []).append(entry)
        return found

    def _blame(self, failed: set[SessionRef], batch: list[KeptEvent]) -> None:
        """Give up sessions that fail again and again while the store works for others."""
        for ref, entries in self._unsettled(batch).items():
            if ref not in failed:
                continue
            self._strikes[ref] += 1
            if self._strikes[ref] >= MAX_STRIKES:
                self._give_up(entries, "failed")
                self._strikes[ref] = MAX_STRIKES - 1  # the next ones are given up after one more failure

    async def _move_cursor(self, batch: list[KeptEvent]) -> None:
        reached = self._events.traced_id
        for entry in batch:
            if entry.id not in self._settled:
                break
            reached = entry.id
        if reached > self._events.traced_id:
            await self._events.set_traced(reached)
            self._settled = {number for number in self._settled if number > reached}
            self._doubtful = {number for number in self._doubtful if number > reached}

    async def _settle(self, ref: SessionRef, entries: list[KeptEvent]) -> _Settling:
        """Write the envelopes of one session, a few at a time, until one fails."""
        outcome = _Settling.GIVEN_UP
        try:
            traces = self._traces_of(ref)
            for start in range(0, len(entries), _AT_ONCE):
                if not await self._is_there(ref):
                    self._give_up(entries[start:], "no_session")
                    break
                await self._append(traces, await self._missing(traces, entries[start : start + _AT_ONCE]))
                outcome = _Settling.WRITTEN
        except MemoError as error:
            if isinstance(error, ProviderError) and not isinstance(error, Corrupt):
                return self._fail(error)
            self._give_up(entries, "refused", error)
        except Exception as error:  # noqa: BLE001  # third-party code may raise anything; also TimeoutError
            return self._fail(error)
        return outcome

    async def _missing(self, traces: SessionTraceStore, entries: list[KeptEvent]) -> list[KeptEvent]:
        """Return those that are not in the trace yet. It is only read if one of them may be there."""
        if self._doubtful.isdisjoint(entry.id for entry in entries):
            return entries
        found = {envelope.get("id") for envelope in await self._ask(traces.load_envelopes()) if _is_ours(envelope)}
        present = {entry.id for entry in entries if str(entry.id) in found}
        self._settled |= present
        self._doubtful -= present
        return [entry for entry in entries if entry.id not in present]

    async def _append(self, traces: SessionTraceStore, entries: list[KeptEvent]) -> None:
        """Append envelopes, together if the store can. One that the store refuses is given up."""
        append_all = getattr(traces, "append_envelopes", None)
        if len(entries) > 1 and callable(append_all):
            with suppress(InvalidContent, TooLarge):  # one of them is refused: one by one, then
                await self._write(entries, append_all([envelope_of(entry) for entry in entries]))
                return
        for entry in entries:
            try:
                await self._write([entry], traces.append_envelope(envelope_of(entry)))
            except ProviderError:
                raise
            except MemoError as error:
                self._give_up([entry], "refused", error)

    async def _write(self, entries: list[KeptEvent], call: Awaitable[None]) -> None:
        numbers = {entry.id for entry in entries}
        self._doubtful |= numbers  # until it returns, and for ever if it fails
        await self._ask(call)
        self._doubtful -= numbers
        self._settled |= numbers
        self.written += len(numbers)

    async def _is_there(self, ref: SessionRef) -> bool:
        """Return whether the session exists, so that a late envelope does not bring back one that was removed."""
        if not callable(getattr(self._store, "get_session", None)):
            return True  # a store that keeps no sessions cannot tell
        if await self._ask(self._store.get_session(ref.tenant, ref.session)) is not None:
            return True
        owner = self._owner_of(ref)
        if owner is None or not callable(getattr(self._store, "get_or_create", None)):
            return False
        try:
            await self._ask(
                self._store.get_or_create(ref.tenant, owner.user, owner.agent or _DEFAULT_AGENT, ref.session)
            )
        except SessionTaken:
            return False
        return True

    def _traces_of(self, ref: SessionRef) -> SessionTraceStore:
        """Return the trace store of a session, which the store is asked for once."""
        traces = self._traces.get(ref)
        if traces is None:
            traces = self._store.session_trace_store(ref)
            if len(self._traces) >= _MOST_OPEN:
                self._traces.popitem(last=False)
            self._traces[ref] = traces
        return cast(SessionTraceStore, traces)

    async def _ask(self, call: Awaitable[T]) -> T:
        with anyio.fail_after(self._timeout_s):
            return await call

    def _fail(self, error: Exception) -> _Settling:
        if not self._is_waiting:
            _log.warning("traces wait for the store", error=type(error).__name__)
        self._is_waiting = True
        return _Settling.FAILED

    def _give_up(self, entries: list[KeptEvent], reason: str, error: Exception | None = None) -> None:
        lost = {entry.id for entry in entries} - self._settled
        self._settled |= lost
        if lost and not self.given_up[reason]:  # once: the figures say how many there are
            why = reason if error is None else str(error)
            _log.warning("an event is in no trace", session=str(entries[0].session), why=why)
        self.given_up[reason] += len(lost)


def can_trace(store: object) -> bool:
    return callable(getattr(store, "session_trace_store", None))


def envelope_of(entry: KeptEvent) -> Envelope:
    """Return the event as a trace envelope."""
    envelope: Envelope = {
        "id": str(entry.id),
        "source": SOURCE,
        "type": entry.kind,
        "at": moment(entry.at).isoformat().replace("+00:00", "Z"),
        "data": from_json(entry.fields),
    }
    if entry.detail is not None:
        envelope["detail"] = from_json(entry.detail)
    return envelope


def _is_ours(envelope: Envelope) -> bool:
    return envelope.get("source") == SOURCE
