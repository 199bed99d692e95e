"""The two contexts: a turn's, which writes through, and a dispatch's, whose changes wait until its iteration succeeds.

Both have the same verbs. A context starts with empty sets: nothing is ever fetched unasked.
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from memo.errors import InvalidContent
from memo.primitives import Memory, Message, Retrievable, Thought, Tokenizable, ToolCall
from memo.turn.abort import AbortSignal
from memo.turn.callbacks import Callbacks, call
from memo.turn.deltas import Delta, DeltaQueue, UnitOfWork
from memo.turn.errors import AlreadySignalled
from memo.turn.events import Event, Persisted
from memo.turn.reporter import Account, Ghost
from memo.turn.sets import TurnSet, TurnSets, name_of
from memo.turn.tools import ToolRegistry
from memo.turn.verbs import ContextVerbs

Emit = Callable[[Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class TurnIdentity:
    """Whose turn it is, and what it starts with."""

    turn_id: str
    tenant: str
    user: str
    session: str
    system_prompt: Tokenizable


class Context(ContextVerbs):
    """What both contexts show. Sets are changed in place; they are never replaced."""

    unit_of_work: UnitOfWork | None = None
    """Set while changes are flushed: what a callback that can wait hands its change to."""

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

    async def _keep_bytes(self, name: str, id: str, data: Any) -> Any:
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
        self.account = Account()
        self._sets.standing_instruction.reset(instructions)

    def audit(self) -> list[Ghost]:
        """Return what was reported and never stored."""
        return self.account.ghosts()

    async def _change(self, delta: Delta) -> None:
        await call(self._callbacks[delta.callback], self, delta.value)
        await self._took(delta)

    async def flush(self, deltas: list[Delta]) -> None:
        """Store all of them in order, in one transaction of every store that takes part, then bring them into scope."""
        work = UnitOfWork()
        flushing = copy.copy(self)  # another task may write through this context meanwhile; it must not be enlisted
        flushing.unit_of_work = work
        for delta in deltas:
            await call(self._callbacks[delta.callback], flushing, delta.value)
        await work.commit()
        for delta in deltas:
            self._sets.apply(delta)
            self._note(delta)

    async def announce(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            await self._emit(Persisted(self.id, delta.verb, delta.noun, name_of(delta.value)))

    async def _took(self, delta: Delta) -> None:
        self._sets.apply(delta)
        self._note(delta)
        await self.announce([delta])

    def _note(self, delta: Delta) -> None:
        if delta.verb != "delete":
            self.account.stored(delta.noun, name_of(delta.value))


class DispatchContext(Context):
    """Derived from a turn. Its sets begin as the turn's and are its own."""

    def __init__(self, turn: TurnContext) -> None:
        super().__init__(turn._identity, turn._callbacks, turn.tools, turn.stash, turn.abort_signal)
        self._turn = turn
        self._sets.reset(turn._sets)
        self._queue = DeltaQueue()
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
        """What `nack` was given."""
        return self._error

    @property
    def pending(self) -> tuple[Delta, ...]:
        """The changes that wait for the end of the iteration."""
        return tuple(self._queue)

    def ack(self) -> None:
        """Say that the dispatch is done. What it changed is stored when the executor returns."""
        self._check_signal("ack")
        self._acked = True

    def nack(self, error: BaseException) -> None:
        """Say that it failed. Everything changed in this iteration is discarded; the error is reported as it is."""
        self._check_signal("nack")
        if not isinstance(error, BaseException):
            raise InvalidContent("cannot nack: the error is not an exception")
        self._error = error

    def tool_call_count(self, checksum: str) -> int:
        """Return how many calls in scope are the same call."""
        return sum(tool_call.checksum == checksum for tool_call in self.turn_tool_calls)

    def audit(self) -> list[Ghost]:
        """Return what was reported and is neither stored nor waiting to be."""
        waiting = {(delta.noun, name_of(delta.value)) for delta in self._queue if delta.verb != "delete"}
        return [ghost for ghost in self._turn.audit() if (ghost.kind, ghost.id) not in waiting]

    def take(self) -> list[Delta]:
        return self._queue.take()

    def discard(self) -> None:
        """Forget every change that waits, and show what the turn shows."""
        self._queue.take()
        self._sets.reset(self._turn._sets)

    def _check_signal(self, signal: str) -> None:
        if self.is_signalled:
            raise AlreadySignalled(f"cannot {signal}: this dispatch has been {'acked' if self._acked else 'nacked'}")

    async def _change(self, delta: Delta) -> None:
        self._sets.apply(delta)
        self._queue.add(delta)
