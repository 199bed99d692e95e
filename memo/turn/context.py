"""Context: what callbacks and middleware work with. A TurnContext writes through; a DispatchContext queues its changes.

Both have the same verbs. A context starts with empty sets: nothing is fetched until requested.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from memo.errors import InvalidContent
from memo.primitives import Memory, Message, Retrievable, Thought, Tokenizable, ToolCall
from memo.turn.abort_signal import AbortSignal
from memo.turn.callbacks import Callbacks, call
from memo.turn.context_verbs import ContextVerbs
from memo.turn.delta import Delta, TurnSet, TurnSets, UnitOfWork, name_of
from memo.turn.errors import AlreadySignalled
from memo.turn.events import Event, Persisted
from memo.turn.reporter import Ghost, ReportLog
from memo.turn.tools import ToolRegistry

Emit = Callable[[Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class TurnIdentity:
    """The turn's id, its owner and its system prompt."""

    turn_id: str
    tenant: str
    user: str
    session: str
    system_prompt: Tokenizable


class Context(ContextVerbs):
    """What both contexts share. Sets are changed in place and never replaced."""

    unit_of_work: UnitOfWork | None = None
    """Set during a flush: a callback that can defer its write adds it here."""

    def __init__(
        self,
        identity: TurnIdentity,
        callbacks: Callbacks,
        tools: ToolRegistry,
        stash: dict[str, Any],
        signal: AbortSignal,
    ) -> None:
        self._identity = identity
        self._callbacks = callbacks
        self._sets = TurnSets()
        self.tools = tools
        self.stash = stash
        self.abort_signal = signal

    @property
    def id(self) -> str:
        return self._identity.turn_id

    @property
    def tenant(self) -> str:
        return self._identity.tenant

    @property
    def user(self) -> str:
        return self._identity.user

    @property
    def session(self) -> str:
        return self._identity.session

    @property
    def system_prompt(self) -> Tokenizable:
        return self._identity.system_prompt

    @property
    def turn_messages(self) -> TurnSet[Message]:
        return self._sets.message

    @property
    def turn_memories(self) -> TurnSet[Memory]:
        return self._sets.memory

    @property
    def turn_thoughts(self) -> TurnSet[Thought]:
        return self._sets.thought

    @property
    def turn_tool_calls(self) -> TurnSet[ToolCall]:
        return self._sets.tool_call

    @property
    def turn_retrievables(self) -> TurnSet[Retrievable]:
        return self._sets.retrievable

    @property
    def standing_instructions(self) -> TurnSet[Tokenizable]:
        return self._sets.standing_instruction

    @property
    def aborted(self) -> bool:
        return self.abort_signal.aborted

    def abort(self, reason: object = None) -> None:
        self.abort_signal.abort(reason)

    async def _fetch(self, name: str) -> list[Any]:
        return list(await call(self._callbacks[name], self))

    async def _store_bytes(self, name: str, id: str, data: Any) -> Any:
        return await call(self._callbacks[name], self, id, data)


class TurnContext(Context):
    def __init__(
        self,
        identity: TurnIdentity,
        callbacks: Callbacks,
        tools: ToolRegistry,
        stash: dict[str, Any],
        signal: AbortSignal,
        emit: Emit,
        instructions: Iterable[Tokenizable] = (),
    ) -> None:
        super().__init__(identity, callbacks, tools, stash, signal)
        self._emit = emit
        self.report_log = ReportLog()
        self._sets.standing_instruction.reset(instructions)

    def audit(self) -> list[Ghost]:
        """Return what was reported but never stored."""
        return self.report_log.ghosts()

    async def _change(self, delta: Delta) -> None:
        await call(self._callbacks[delta.callback], self, delta.value)
        self._apply(delta)
        await self.announce([delta])

    async def flush(self, deltas: list[Delta]) -> None:
        """Store the changes in order, in one transaction for each store involved, then apply them to the sets."""
        work = UnitOfWork()
        flushing = copy.copy(
            self
        )  # a copy: another task may write through this context at the same time and must not join the transaction
        flushing.unit_of_work = work
        for delta in deltas:
            await call(self._callbacks[delta.callback], flushing, delta.value)
        await work.commit()
        for delta in deltas:
            self._apply(delta)

    async def announce(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            await self._emit(Persisted(self.id, delta.verb, delta.noun, name_of(delta.value)))

    def _apply(self, delta: Delta) -> None:
        self._sets.apply(delta)
        if delta.verb != "delete":
            self.report_log.stored(delta.noun, name_of(delta.value))


class DispatchContext(Context):
    """Derived from a turn. Its sets start as copies of the turn's."""

    def __init__(self, turn: TurnContext) -> None:
        super().__init__(turn._identity, turn._callbacks, turn.tools, turn.stash, turn.abort_signal)
        self._turn = turn
        self._sets.reset(turn._sets)
        self._queue: list[Delta] = []
        self._acked = False
        self._error: BaseException | None = None
        self.iteration = 0

    @property
    def is_signalled(self) -> bool:
        return self._acked or self._error is not None

    @property
    def is_acked(self) -> bool:
        return self._acked

    @property
    def error(self) -> BaseException | None:
        """The error given to `nack`."""
        return self._error

    @property
    def pending(self) -> tuple[Delta, ...]:
        """The changes queued until the end of the iteration."""
        return tuple(self._queue)

    def ack(self) -> None:
        """End the dispatch successfully. Its changes are stored when the executor returns."""
        self._check_signal("ack")
        self._acked = True

    def nack(self, error: BaseException) -> None:
        """End the dispatch with an error, which is reported unchanged. The changes of this iteration are discarded."""
        self._check_signal("nack")
        if not isinstance(error, BaseException):
            raise InvalidContent("cannot nack: the error is not an exception")
        self._error = error

    def tool_call_count(self, checksum: str) -> int:
        """Return how many calls in scope have this checksum."""
        return sum(tool_call.checksum == checksum for tool_call in self.turn_tool_calls)

    def audit(self) -> list[Ghost]:
        """Return what was reported and is neither stored nor queued."""
        queued = {(delta.noun, name_of(delta.value)) for delta in self._queue if delta.verb != "delete"}
        return [ghost for ghost in self._turn.audit() if (ghost.kind, ghost.id) not in queued]

    def take(self) -> list[Delta]:
        """Return the queued changes and empty the queue."""
        deltas, self._queue = self._queue, []
        return deltas

    def discard(self) -> None:
        """Drop the queued changes and reset the sets to the turn's."""
        self._queue = []
        self._sets.reset(self._turn._sets)

    def _check_signal(self, signal: str) -> None:
        if self.is_signalled:
            raise AlreadySignalled(f"cannot {signal}: this dispatch was already {'acked' if self._acked else 'nacked'}")

    async def _change(self, delta: Delta) -> None:
        self._sets.apply(delta)
        self._queue.append(delta)
