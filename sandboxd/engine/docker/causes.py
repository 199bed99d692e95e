"""Why a container died, decided from an engine's raw events or from its final state.

Pure. An `oom` that killed some process an hour ago is not why PID 1 dies now, so only recent events count.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sandboxd.engine.protocol import ContainerDied
from sandboxd.errors import Cause

OOM_NEAR_NS = 2_000_000_000
KILL_NEAR_NS = 30_000_000_000
"""A stop allows a grace period between the signal and the death."""

_KILLED = 128 + 9
_TERMINATED = 128 + 15

OUTAGE_SLACK_NS = 1_000_000_000
"""An engine that shuts down reports a death a little after the time it gives for it."""

RawAction = Literal["die", "oom", "kill", "destroy", "pause", "unpause"]


@dataclass(frozen=True, slots=True)
class RawEvent:
    """One event of an engine's stream, reduced to what matters for deaths and pauses."""

    action: RawAction
    container_id: str
    at_ns: int
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    died: ContainerDied
    at_ns: int
    is_sure: bool
    """False if PID 1 was killed and the stream does not say why: the engine may have recorded an oom."""


@dataclass(slots=True)
class DeathLedger:
    """Remembers which containers were signalled, until they die. One ledger belongs to one event stream."""

    _oom_at: dict[str, int] = field(default_factory=dict)
    _kill_at: dict[str, int] = field(default_factory=dict)

    def judge(self, event: RawEvent) -> Judgement | None:
        """Return the death that this event reports, or None if it only precedes one."""
        match event.action:
            case "oom":
                self._oom_at[event.container_id] = event.at_ns
            case "kill":
                self._kill_at[event.container_id] = event.at_ns
            case "destroy":
                self._forget(event.container_id)
            case "die":
                return self._bury(event)
        return None

    def _bury(self, event: RawEvent) -> Judgement:
        oom_at, kill_at = self._forget(event.container_id)
        killed_by_engine = kill_at is not None and event.at_ns - kill_at <= KILL_NEAR_NS
        oom_is_near = oom_at is not None and event.at_ns - oom_at <= OOM_NEAR_NS
        cause = cause_of_exit(event.exit_code, out_of_memory=oom_is_near and not killed_by_engine)
        is_sure = cause != "killed" or killed_by_engine or oom_at is not None
        return Judgement(ContainerDied(event.container_id, cause, event.exit_code), event.at_ns, is_sure)

    def _forget(self, container_id: str) -> tuple[int | None, int | None]:
        return self._oom_at.pop(container_id, None), self._kill_at.pop(container_id, None)


@dataclass(slots=True)
class Outage:
    """The engine's last outage. Its containers die with it, or when it comes back."""

    _span_ns: tuple[int, int | None] | None = None

    def begin(self, at_ns: int) -> None:
        """Record that the engine is unreachable now."""
        if self._span_ns is None or self._span_ns[1] is not None:
            self._span_ns = at_ns, None
        else:
            self._span_ns = min(self._span_ns[0], at_ns), None

    def end(self, at_ns: int) -> None:
        """Record that the engine answers."""
        if self._span_ns is not None and self._span_ns[1] is None:
            self._span_ns = self._span_ns[0], at_ns

    def covers(self, at_ns: int) -> bool:
        if self._span_ns is None:
            return False
        began_ns, ended_ns = self._span_ns
        return began_ns - OUTAGE_SLACK_NS <= at_ns and (ended_ns is None or at_ns <= ended_ns)


def cause_of_exit(exit_code: int | None, *, out_of_memory: bool) -> Cause:
    """Return the cause for an exit code. Without a code, the engine itself lost the container."""
    if exit_code is None:
        return "engine"
    if exit_code == _KILLED and out_of_memory:
        return "oom"
    return "killed" if exit_code in (_KILLED, _TERMINATED) else "exited"
