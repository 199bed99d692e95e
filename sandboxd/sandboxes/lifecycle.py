"""The life cycle of a sandbox as a pure function: `step(record, event) -> (record, effects)`.

It decides and never acts: `Effects` saves the record first and then carries out the effects, so every crash between
the two is resolved at the next start (see `reconcile_plan`). No other module changes a record. An event that cannot
happen in a state raises InvalidTransition with the record's last transitions.

    new ──requested──► CREATING (a record without a container yet)
    CREATING ──launched──► STARTING ──runner ready──► READY ──idle, expired, on request──► HIBERNATED
        │                   │  ▲  │                     └────died──► GONE
        │                   │  │  └──no owner yet──► WARM ──died──► DESTROYING
        │                   │  └──────claimed─────────┘
        └──────failed───────┴─► DESTROYING (first launch) or HIBERNATED (a later one: the workspace is kept)
    READY ──paused──► PAUSED ──resumed──► READY; everything else is the same as from READY
    HIBERNATED, GONE ──called, requested again──► CREATING
    READY, PAUSED, HIBERNATED, GONE ──recreated──► CREATING (with another image, limits or environment)
    any state ──destroy requested──► DESTROYING ──torn down──► REMOVED
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Literal, Self

from memo.ids import AgentId, SessionId, SessionRef, UserId
from sandboxd.errors import Cause, InvalidTransition
from sandboxd.limits import Limits
from sandboxd.models.network import NetworkAccess
from sandboxd.models.sandbox import Resume

MOST_TRANSITIONS = 8
"""How many transitions a record remembers."""

Removal = Literal["asked", "create_failed", "pool", "expired", "over_limit"]
"""Why a workspace is removed: on request, because its create was never acknowledged, because it never had an owner, or
because of a retention rule: unused for too long, or the least recently used when all of them exceed their limit."""


class State(StrEnum):
    CREATING = "creating"
    STARTING = "starting"
    WARM = "warm"
    READY = "ready"
    PAUSED = "paused"
    HIBERNATED = "hibernated"
    GONE = "gone"
    DESTROYING = "destroying"
    REMOVED = "removed"


RESTING = (State.HIBERNATED, State.GONE)
"""The states without a container, in which the workspace waits for the next one."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The session and user that a sandbox belongs to, and the environment of its commands."""

    ref: SessionRef
    user: UserId
    agent: AgentId | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a container that are fixed before it is claimed. A request only claims its own shape."""

    image: str
    limits: Limits
    fittings: str = ""
    """A digest of what this daemon mounts and runs in every container; another daemon's may differ."""


@dataclass(frozen=True, slots=True)
class Options:
    """What may change while the sandbox lives. None means what the daemon's settings say."""

    idle_timeout_s: float | None = None
    ttl_s: float | None = None
    resume: Resume = "auto"
    labels: Mapping[str, str] = field(default_factory=dict)
    network: NetworkAccess | None = None
    """What it may reach; None means nothing."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the first files of a workspace came from, if it did not begin empty."""

    parent: SessionId | None = None
    """The session that it was forked from."""
    fork: str | None = None
    """The request that forked it, by which a retry is recognised."""
    snapshot: str | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    event: str
    state: State
    at: datetime | None

    def __str__(self) -> str:
        when = "" if self.at is None else f" at {self.at.isoformat(timespec='milliseconds')}"
        return f"{self.event} -> {self.state}{when}"


@dataclass(frozen=True, slots=True)
class Record:
    """Everything about one sandbox that must survive the daemon. `id` is opaque and names everything on disk."""

    id: str
    shape: Shape
    engine: str
    secret: str = field(repr=False)
    created_at: datetime
    owner: Owner | None = None
    """None while it waits in the pool and has never had an owner."""
    state: State = State.CREATING
    generation: int = 0
    """How many containers were requested: a workspace outlives a container that died. 0 only before the first step."""
    container: str | None = None
    cause: Cause | None = None
    """Why it has no container, or why it is paused: `asked` if on request, None if from outside."""
    options: Options = Options()
    origin: Origin = Origin()
    expires_at: datetime | None = None
    """When its container is due to hibernate, even if it is in use; None means never."""
    resting_since: datetime | None = None
    """When it lost its container, on which the retention of its workspace is based."""
    from_pool: bool = False
    removal: Removal | None = None
    """Why it is being destroyed together with its workspace; None if it is not. (I14)"""
    past: tuple[Transition, ...] = field(default=(), compare=False, repr=False)
    """The last transitions since this daemon started, oldest first. Not saved."""

    @property
    def container_name(self) -> str:
        return f"sandboxd-{self.id}-{self.generation}"

    @property
    def is_claimed(self) -> bool:
        """Whether it came from the pool and is being handed over to its owner."""
        return self.state is State.STARTING and self.from_pool

    def to(self, state: State, *, container: str | None = None, cause: Cause | None = None) -> Self:
        return replace(self, state=state, container=container, cause=cause)


@dataclass(frozen=True, slots=True)
class LaunchAsked:
    """A container is requested, for a new sandbox or for one that has none."""

    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RecreateAsked:
    """The container is to be replaced by another one of this shape and environment. The workspace stays."""

    shape: Shape
    env: Mapping[str, str] = field(repr=False)
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Launched:
    container: str


@dataclass(frozen=True, slots=True)
class RunnerReady:
    pass


@dataclass(frozen=True, slots=True)
class Claimed:
    """A warm sandbox gets its owner, permanently."""

    owner: Owner
    at: datetime
    options: Options = Options()
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class OptionsChanged:
    options: Options
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    pass


@dataclass(frozen=True, slots=True)
class DeathSeen:
    cause: Cause


@dataclass(frozen=True, slots=True)
class PauseSeen:
    """The container was paused by something other than this daemon."""


@dataclass(frozen=True, slots=True)
class ResumeSeen:
    pass


@dataclass(frozen=True, slots=True)
class PauseAsked:
    pass


@dataclass(frozen=True, slots=True)
class ResumeAsked:
    """A container that was paused on request, or from outside, is to continue."""


@dataclass(frozen=True, slots=True)
class HibernateAsked:
    """The container is stopped, because it was unused, is as old as it may be, or on request. Its workspace stays."""

    cause: Cause


@dataclass(frozen=True, slots=True)
class DestroyAsked:
    removal: Removal = "asked"


@dataclass(frozen=True, slots=True)
class TornDown:
    pass


Event = (
    LaunchAsked
    | Launched
    | RunnerReady
    | Claimed
    | RecreateAsked
    | OptionsChanged
    | LaunchFailed
    | DeathSeen
    | PauseSeen
    | ResumeSeen
    | PauseAsked
    | ResumeAsked
    | HibernateAsked
    | DestroyAsked
    | TornDown
)


class Effect(StrEnum):
    """What `Effects` must do, in the order given, once the new record is saved."""

    LAUNCH = "launch"
    AWAIT_RUNNER = "await_runner"
    HAND_OVER = "hand_over"
    DRAIN_CALLS = "drain_calls"
    FAIL_CALLS = "fail_calls"
    FREEZE_CALLS = "freeze_calls"
    THAW_CALLS = "thaw_calls"
    PAUSE_CONTAINER = "pause_container"
    RESUME_CONTAINER = "resume_container"
    REMOVE_CONTAINER = "remove_container"
    REST_WORKSPACE = "rest_workspace"
    TEAR_DOWN = "tear_down"
    FORGET = "forget"
    ANNOUNCE = "announce"


def step(record: Record, event: Event, at: datetime | None = None) -> tuple[Record, list[Effect]]:
    """Return the record after `event`, which happened `at` this time, and what to do about it."""
    after, effects = _decide(record, event)
    if after.state not in RESTING:
        after = replace(after, resting_since=None)
    elif record.state not in RESTING:
        after = replace(after, resting_since=at)
    transition = Transition(type(event).__name__, after.state, at)
    return replace(after, past=(*record.past, transition)[-MOST_TRANSITIONS:]), effects


def saved_form(record: Record) -> Record:
    """Return the record to save.

    A claimed sandbox is saved as ready: if the daemon dies during the hand-over, the next one takes it over, which
    gives it the same memory and environment. So a claim needs one write to disk and not two.
    """
    return record.to(State.READY, container=record.container) if record.is_claimed else record


def _decide(record: Record, event: Event) -> tuple[Record, list[Effect]]:
    match record.state, event:
        case State.CREATING, LaunchAsked(expires_at) if record.generation == 0:
            return _launch(record, expires_at)
        case _ if record.generation == 0:
            pass  # nothing else can happen to a new record
        case State.CREATING, Launched(container):
            return record.to(State.STARTING, container=container), [Effect.AWAIT_RUNNER]
        case State.STARTING, RunnerReady() if record.owner is None:
            return record.to(State.WARM, container=record.container), []
        case State.STARTING, RunnerReady():
            return record.to(State.READY, container=record.container), [Effect.ANNOUNCE]
        case State.WARM, Claimed(owner, at, options, expires_at):
            # STARTING again, not READY: after a crash before the hand-over it must not go to another owner.
            claimed = replace(record.to(State.STARTING, container=record.container), from_pool=True)
            owned = replace(claimed, owner=owner, created_at=at, options=options, expires_at=expires_at)
            return owned, [Effect.HAND_OVER]
        case State.WARM, (DeathSeen() | PauseSeen()):
            # It has no owner yet, and a warm sandbox that cannot be handed over at once is useless.
            return replace(record.to(State.DESTROYING), removal="pool"), [Effect.TEAR_DOWN]
        case State.READY, PauseSeen():
            return record.to(State.PAUSED, container=record.container), [Effect.FREEZE_CALLS, Effect.ANNOUNCE]
        case State.READY, PauseAsked():
            paused = record.to(State.PAUSED, container=record.container, cause="asked")
            return paused, [Effect.FREEZE_CALLS, Effect.PAUSE_CONTAINER, Effect.ANNOUNCE]
        case State.PAUSED, ResumeAsked():
            return record, [Effect.RESUME_CONTAINER]  # which raises ResumeSeen once its processes run again
        case State.PAUSED, ResumeSeen():
            return record.to(State.READY, container=record.container), [Effect.THAW_CALLS, Effect.ANNOUNCE]
        case ((State.CREATING | State.STARTING), (LaunchFailed() | DeathSeen())):
            return _launch_failed(record)
        case ((State.READY | State.PAUSED), DeathSeen(cause)):
            return (
                record.to(State.GONE, cause=cause),
                [Effect.FAIL_CALLS, Effect.ANNOUNCE, Effect.REMOVE_CONTAINER],
            )
        case State.READY, LaunchFailed():
            # It may have been used already, so its workspace stays. (I14)
            return record.to(State.GONE, cause="engine"), [Effect.REMOVE_CONTAINER, Effect.ANNOUNCE]
        case ((State.READY | State.PAUSED | State.HIBERNATED | State.GONE), HibernateAsked(cause)):
            return (
                replace(record.to(State.HIBERNATED, cause=cause), expires_at=None),
                [Effect.DRAIN_CALLS, Effect.ANNOUNCE, Effect.REMOVE_CONTAINER, Effect.REST_WORKSPACE],
            )
        case ((State.HIBERNATED | State.GONE), LaunchAsked(expires_at)):
            return _launch(record, expires_at)
        case (
            (State.READY | State.PAUSED | State.HIBERNATED | State.GONE),
            RecreateAsked(shape, env, expires_at),
        ) if record.owner is not None:
            launched, launch = _launch(record, expires_at)
            recreated = replace(launched, shape=shape, owner=replace(record.owner, env=env))
            return recreated, [Effect.DRAIN_CALLS, Effect.REMOVE_CONTAINER, *launch]
        case (
            (State.CREATING | State.STARTING | State.READY | State.PAUSED | State.HIBERNATED | State.GONE),
            OptionsChanged(options, expires_at),
        ) if record.owner is not None:
            return replace(record, options=options, expires_at=expires_at), []
        case ((State.HIBERNATED | State.GONE | State.DESTROYING), DeathSeen()):
            return record, []  # a late event: the sandbox has moved on
        case State.DESTROYING, DestroyAsked():
            return record, [Effect.TEAR_DOWN]  # tearing down is idempotent, so a repeated request tries again
        case State.DESTROYING, TornDown():
            return record.to(State.REMOVED), [Effect.FORGET, Effect.ANNOUNCE]
        case state, DestroyAsked(removal) if state is not State.REMOVED:
            return (
                replace(record.to(State.DESTROYING, container=record.container), removal=removal),
                [Effect.ANNOUNCE, Effect.DRAIN_CALLS, Effect.TEAR_DOWN],
            )
    story = ", ".join(map(str, record.past)) or "none since this daemon started"
    raise InvalidTransition(
        f"cannot apply {type(event).__name__} to sandbox {record.id} in state {record.state}; "
        f"its last transitions: {story}"
    )


def _launch(record: Record, expires_at: datetime | None) -> tuple[Record, list[Effect]]:
    launched = replace(record.to(State.CREATING), generation=record.generation + 1, from_pool=False)
    return replace(launched, expires_at=expires_at), [Effect.LAUNCH]


def _launch_failed(record: Record) -> tuple[Record, list[Effect]]:
    if record.generation > 1:
        # Not GONE: no process was lost, so the next call may try again by itself.
        asleep = replace(record.to(State.HIBERNATED, cause="engine"), expires_at=None)
        return asleep, [Effect.ANNOUNCE, Effect.REMOVE_CONTAINER, Effect.REST_WORKSPACE]
    return replace(record.to(State.DESTROYING), removal="create_failed"), [Effect.TEAR_DOWN]
