"""The lines that a context's bridge sends, read into values. Pure.

They come from inside a container: every field is checked and every size is bounded here, and anything wrong is a
ContextFailed.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, get_args

from sandboxd.errors import ContextFailed
from sandboxd.models.context import ContextState, Loss, RunOutcome, RunOutput

MAX_LINE_BYTES = 1_048_576
MAX_NAME_CHARS = 128
MAX_VALUES = 16
_STATES = frozenset(get_args(ContextState))
_LOSSES = frozenset(get_args(Loss))


@dataclass(frozen=True, slots=True)
class BridgeState:
    state: str
    execution_count: int


async def read_lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[dict[str, Any]]:
    """Yield every line as an object."""
    buffer = bytearray()
    async for piece in pieces:
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            buffer += piece[start:end]
            yield _parse(bytes(buffer))
            buffer.clear()
            start = end + 1
        buffer += piece[start:]
        if len(buffer) > MAX_LINE_BYTES:
            raise _nonsense("a line that is too long")


def _parse(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise _nonsense("a line that is not JSON") from None
    if not isinstance(found, dict):
        raise _nonsense("a line that is not an object")
    return found


def read_state(line: dict[str, Any]) -> BridgeState:
    return BridgeState(_one_of(line, "state", _STATES), _count(line, "execution_count"))


def read_outcome(end: object) -> tuple[RunOutcome, bool]:
    """Return how a run ended, and whether the state was lost before it began."""
    if not isinstance(end, dict):
        raise _nonsense("an end that is not an object")
    lost = end.get("lost")
    cause = None
    if lost is not None:
        cause = _one_of(lost if isinstance(lost, dict) else {}, "why", _LOSSES)
    duration_ms = end.get("ms")
    if not isinstance(duration_ms, int | float) or not 0 <= duration_ms < 1e12:
        raise _nonsense("an invalid duration")
    outcome = RunOutcome(
        ok=end.get("ok") is True,
        execution_count=_count(end, "count"),
        timed_out=end.get("timed_out") is True,
        truncated=end.get("truncated") is True,
        state_lost=cause is not None,
        cause=cause,
        duration_ms=round(duration_ms, 3),
    )
    return outcome, isinstance(lost, dict) and lost.get("earlier") is True


class OutputReader:
    """Joins the parts of long values and counts what a run sends: more than its bound is an error."""

    def __init__(self, most_bytes: int) -> None:
        # Each line counts a little more than its text, and the error of a run is sent in any case.
        self._left = most_bytes + MAX_LINE_BYTES
        self._parts: dict[str, list[str]] = {}

    def read(self, line: dict[str, Any]) -> RunOutput | None:
        """Return the output that this line completes, if any."""
        match line.get("type"):
            case "part":
                mime = self._text(line, "mime")[:MAX_NAME_CHARS]
                if mime not in self._parts and len(self._parts) >= MAX_VALUES:
                    raise _nonsense("too many values")
                self._parts.setdefault(mime, []).append(self._text(line, "text"))
                return None
            case "stdout" | "stderr" as kind:
                return RunOutput(type=kind, data={"text/plain": self._text(line, "text")})
            case "result" | "display" as kind:
                return RunOutput(type=kind, data=self._values(line.get("data")), omitted=_sizes(line.get("omitted")))
            case "error":
                fields = {name: self._text(line, name) for name in ("ename", "evalue", "traceback")}
                return RunOutput(type="error", data={"text/plain": _summary(fields)}, **fields)
            case _:
                raise _nonsense("an output of an unknown type")

    def _text(self, line: dict[str, Any], name: str) -> str:
        text = line.get(name)
        if not isinstance(text, str):
            raise _nonsense(f"a {name} that is not text")
        self._count(len(text))
        return text.encode("utf-8", "replace").decode() if not text.isascii() else text

    def _values(self, values: object) -> dict[str, Any]:
        if not isinstance(values, dict) or len(values) > MAX_VALUES:
            raise _nonsense("invalid values")
        self._count(sum(len(value) for value in values.values() if isinstance(value, str)))
        found = {str(name)[:MAX_NAME_CHARS]: value for name, value in values.items()}
        found.update({name: "".join(parts) for name, parts in self._parts.items()})
        self._parts.clear()
        return found

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _nonsense("more output than requested")


def _summary(error: dict[str, str]) -> str:
    return f"{error['ename']}: {error['evalue']}" if error["evalue"] else error["ename"]


def _sizes(omitted: object) -> dict[str, int]:
    if not isinstance(omitted, dict) or len(omitted) > MAX_VALUES:
        raise _nonsense("invalid sizes")
    if not all(type(size) is int and 0 <= size < 2**53 for size in omitted.values()):
        raise _nonsense("invalid sizes")
    return {str(name)[:MAX_NAME_CHARS]: size for name, size in omitted.items()}


def _one_of(line: dict[str, Any], name: str, known: frozenset[str]) -> str:
    value = line.get(name)
    if not isinstance(value, str) or value not in known:
        raise _nonsense(f"an invalid {name}")
    return value


def _count(line: dict[str, Any], name: str) -> int:
    value = line.get(name)
    if type(value) is not int or not 0 <= value < 2**53:
        raise _nonsense(f"an invalid {name}")
    return value


def _nonsense(what: str) -> ContextFailed:
    return ContextFailed(f"cannot use this context: its process sent {what}; remove it and create another one")
