"""The life of a sandbox, as a pure function: `step(record, event) -> (record, effects)`.

It decides and never acts: the manager saves the record first and then carries out the effects, so every
crash between the two has an answer at the next start (see `reconcile`). An event that cannot happen in a
state raises InvalidTransition with its story.

    CREATING ──launched──► STARTING ──runner ready──► READY ──died──► GONE ──asked again──► CREATING
        └──────failed─────────┴─► DESTROYING (first launch) or GONE (a later one: the workspace is kept)
    any state ──destroy asked──► DESTROYING ──torn down──► REMOVED
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Self

from memo.ids import AgentId, SessionRef, UserId
from sandboxd.errors import Cause, InvalidTransition
from sandboxd.limits import Limits


class State(StrEnum):
    CREATING = "creating"
    STARTING = "starting"
    READY = "ready"
    GONE = "gone"
    DESTROYING = "destroying"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Record:
    """All that must survive the daemon about one sandbox. `id` is opaque and names everything on disk."""

    id: str
    ref: SessionRef
    user: UserId
    agent: AgentId | None
    image: str
    limits: Limits
    engine: str
    secret: str = field(repr=False)
    created_at: datetime
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    state: State = State.CREATING
    generation: int = 1
    """How many containers this sandbox has had: a workspace outlives a container that died."""
    container: str | None = None
    cause: Cause | None = None

    @property
    def container_name(self) -> str:
        return f"sandboxd-{self.id}-{self.generation}"

    def to(self, state: State, *, container: str | None = None, cause: Cause | None = None) -> Self:
        return replace(self, state=state, container=container, cause=cause)


@dataclass(frozen=True, slots=True)
class LaunchAsked:
    """Somebody wants a container again for a sandbox whose container died."""


@dataclass(frozen=True, slots=True)
class Launched:
    container: str


@dataclass(frozen=True, slots=True)
class RunnerReady:
    pass


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    pass


@dataclass(frozen=True, slots=True)
class ContainerDied:
    cause: Cause


@dataclass(frozen=True, slots=True)
class DestroyAsked:
    pass


@dataclass(frozen=True, slots=True)
class TornDown:
    pass


Event = LaunchAsked | Launched | RunnerReady | LaunchFailed | ContainerDied | DestroyAsked | TornDown


class Effect(StrEnum):
    """What the manager must do, in this order, once the new record is saved."""

    LAUNCH = "launch"
    AWAIT_RUNNER = "await_runner"
    DRAIN_CALLS = "drain_calls"
    FAIL_CALLS = "fail_calls"
    REMOVE_CONTAINER = "remove_container"
    TEAR_DOWN = "tear_down"
    FORGET = "forget"
    ANNOUNCE = "announce"


def step(record: Record, event: Event) -> tuple[Record, list[Effect]]:
    """Return the record after `event` and what to do about it."""
    match record.state, event:
        case State.CREATING, Launched(container):
            return record.to(State.STARTING, container=container), [Effect.AWAIT_RUNNER]
        case State.STARTING, RunnerReady():
            return record.to(State.READY, container=record.container), [Effect.ANNOUNCE]
        case ((State.CREATING | State.STARTING), (LaunchFailed() | ContainerDied())):
            return _launch_failed(record)
        case State.READY, ContainerDied(cause):
            return (
                record.to(State.GONE, cause=cause),
                [Effect.FAIL_CALLS, Effect.ANNOUNCE, Effect.REMOVE_CONTAINER],
            )
        case State.GONE, LaunchAsked():
            again = record.to(State.CREATING)
            return replace(again, generation=record.generation + 1), [Effect.LAUNCH]
        case ((State.GONE | State.DESTROYING), ContainerDied()):
            return record, []  # late news: the container of a sandbox that has already moved on
        case ((State.CREATING | State.STARTING | State.READY | State.GONE), DestroyAsked()):
            return (
                record.to(State.DESTROYING, container=record.container),
                [Effect.ANNOUNCE, Effect.DRAIN_CALLS, Effect.TEAR_DOWN],
            )
        case State.DESTROYING, DestroyAsked():
            return record, [Effect.TEAR_DOWN]  # tearing down is idempotent: asking again tries again
        case State.DESTROYING, TornDown():
            return record.to(State.REMOVED), [Effect.FORGET, Effect.ANNOUNCE]
    raise InvalidTransition(f"cannot apply {type(event).__name__} to sandbox {record.id} in state {record.state}")


def _launch_failed(record: Record) -> tuple[Record, list[Effect]]:
    if record.generation > 1:
        return record.to(State.GONE, cause="engine"), [Effect.REMOVE_CONTAINER, Effect.ANNOUNCE]
    return record.to(State.DESTROYING), [Effect.TEAR_DOWN]
