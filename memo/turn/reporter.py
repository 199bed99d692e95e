"""Reporter: what an executor streams to listeners, and the record of what was shown but never stored.

Reports go to the event bus and nowhere else. An id is reported in pieces until it is complete, and then sealed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

from memo.errors import InvalidContent
from memo.turn.errors import StreamSealed
from memo.turn.events import Event, MessageReport, ThoughtReport, ToolCallReport

ReportKind = Literal["message", "thought", "tool_call"]


@dataclass(frozen=True, slots=True)
class Ghost:
    """Something reported but never stored: listeners saw it, and no later turn will."""

    kind: ReportKind
    id: str
    is_complete: bool


class ReportLog:
    """What one turn reported and what it stored."""

    def __init__(self) -> None:
        self._reported: dict[tuple[ReportKind, str], bool] = {}
        self._stored: set[tuple[str, str]] = set()

    def reported(self, kind: ReportKind, id: str, is_complete: bool) -> None:
        self._reported[kind, id] = is_complete

    def stored(self, noun: str, id: str) -> None:
        self._stored.add((noun, id))

    def ghosts(self) -> list[Ghost]:
        return [Ghost(kind, id, done) for (kind, id), done in self._reported.items() if (kind, id) not in self._stored]


@dataclass(slots=True)
class _ToolCallState:
    tool: str | None = None
    args: Any = None
    results: Any = None
    is_error: bool | None = None


class Reporter:
    """The reporting methods of one dispatch. Owns what was reported so far for each id."""

    def __init__(self, turn_id: str, log: ReportLog, emit: Callable[[Event], Awaitable[None]]) -> None:
        self._turn_id = turn_id
        self._log = log
        self._emit = emit
        self._texts: dict[tuple[ReportKind, str], list[str]] = {}
        self._calls: dict[str, _ToolCallState] = {}
        self._sealed: set[str] = set()

    async def report_message(self, id: str, delta: str = "", *, is_complete: bool = False) -> None:
        full = self._extend("message", id, delta, is_complete)
        await self._emit(MessageReport(self._turn_id, id, delta, full, is_complete))

    async def report_thought(self, id: str, delta: str = "", *, is_complete: bool = False) -> None:
        full = self._extend("thought", id, delta, is_complete)
        await self._emit(ThoughtReport(self._turn_id, id, delta, full, is_complete))

    async def report_tool_call(
        self,
        id: str,
        *,
        tool: str | None = None,
        args: Any = None,
        results: Any = None,
        is_error: bool | None = None,
        is_complete: bool = False,
    ) -> None:
        """Report the fields that are new; the others keep their last value."""
        self._check(id)
        known = self._calls.setdefault(id, _ToolCallState())
        for name, value in (("tool", tool), ("args", args), ("results", results), ("is_error", is_error)):
            if value is not None:
                setattr(known, name, value)
        self._note("tool_call", id, is_complete)
        report = ToolCallReport(self._turn_id, id, known.tool, known.args, known.results, known.is_error, is_complete)
        await self._emit(report)

    def _extend(self, kind: ReportKind, id: str, delta: str, is_complete: bool) -> str:
        self._check(id)
        if not isinstance(delta, str):
            raise InvalidContent(f"cannot report {kind} {id}: the delta is not a string")
        pieces = self._texts.setdefault((kind, id), [])
        pieces.append(delta)
        full = "".join(pieces)
        pieces[:] = [full]
        self._note(kind, id, is_complete)
        return full

    def _check(self, id: str) -> None:
        if not isinstance(id, str) or not id:
            raise InvalidContent("cannot report this: an id is required")
        if id in self._sealed:
            raise StreamSealed(f"cannot report {id}: it was already reported as complete")

    def _note(self, kind: ReportKind, id: str, is_complete: bool) -> None:
        self._log.reported(kind, id, is_complete)
        if is_complete:
            self._sealed.add(id)
