"""One sandbox in the daemon: its record, its runner, the calls and the move under way.

A *move* is a part of its life cycle (bring up, tear down, adopt, hibernate). A sandbox makes one move at a time; the
next one waits for the one under way. `Moves` starts and carries them out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Literal, Protocol

import anyio

from sandboxd.errors import Gone, Hibernated, NotReady, Paused, SandboxdError, SandboxNotFound
from sandboxd.models.network import NetworkView
from sandboxd.models.sandbox import SandboxView
from sandboxd.network.egress import SandboxEgress
from sandboxd.runner.client import RunnerClient
from sandboxd.runner.listener import RunnerListener
from sandboxd.sandboxes.lifecycle import Owner, Record, State

_DEAD = "its container is dead ({cause})"
_REASONS = {
    "mirror": "the directory that showed its memory was removed on the host, so its container was stopped",
}
_ADVICE = "its files are kept: create the sandbox again to continue"
_WAKE = "its files are kept: resume it with POST .../sandbox/resume or `sandboxd resume`"


class WorkspaceSource(Protocol):
    """Where the first files of a new sandbox come from. It is used only for its first container."""

    async def fill_workspace(self, sandbox: Sandbox) -> None:
        """Make its workspace, before its container is launched."""

    async def before_ready(self, sandbox: Sandbox) -> None:
        """Complete it once its runner is connected, before any caller has it."""


class Sandbox:
    def __init__(self, record: Record, default_idle_timeout_s: float = 0.0) -> None:
        self.record = record
        self._default_idle_timeout_s = default_idle_timeout_s
        self.saved: Record | None = None
        """The record that this daemon last saved in the registry."""
        self.listener: RunnerListener | None = None
        self.runner: RunnerClient | None = None
        self.failure: SandboxdError | None = None
        """Why the last move failed; None if it succeeded."""
        self.scope: anyio.CancelScope | None = None
        """Cancels the bring-up under way; None if there is none."""
        self.start_deadline = 0.0
        """The deadline of the start under way, on the event loop's clock."""
        self.settled: anyio.Event | None = None
        """Set when the move under way ends; None if there is none."""
        self.mirror_identity = ""
        """Which directory its container shows as memory; see `Layout.mirror_identity`."""
        self.source: WorkspaceSource | None = None
        """Fills its workspace; None if it begins empty, or was filled."""
        self.egress: SandboxEgress | None = None
        """What it may reach and has reached; None if it never had network access under this daemon."""
        self.active_calls = 0
        self.last_used = time.monotonic()
        self._quiet: anyio.Event | None = None

    def call(self) -> Call:
        """Return a call, which counts for idle time and draining. No await: every tool call takes this path."""
        record, runner = self.record, self.runner
        if record.state is State.READY and runner is not None:
            return Call(self, runner)
        raise self.unfit("use")

    @property
    def idle_timeout_s(self) -> float:
        """Seconds without use until it hibernates; 0 means never."""
        own = self.record.options.idle_timeout_s
        return self._default_idle_timeout_s if own is None else own

    @property
    def is_waking(self) -> bool:
        """Whether it gets a container again, so that a call may wait for it. A new sandbox is not waking."""
        is_coming_up = self.record.state in (State.CREATING, State.STARTING)
        return is_coming_up and self.record.generation > 1 and self.settled is not None

    @property
    def may_wake(self) -> bool:
        """Whether a call may resume it."""
        record = self.record
        is_asleep = record.state is State.HIBERNATED or (record.state is State.PAUSED and record.cause == "asked")
        return is_asleep and record.options.resume == "auto"

    def unfit(self, verb: str) -> Gone | Hibernated | NotReady | Paused:
        """Return the error that says why this sandbox, which is not ready, cannot be used."""
        record = self.record
        if record.state is State.HIBERNATED:
            return Hibernated(f"cannot {verb} this sandbox: it is hibernated ({record.cause}); {_WAKE}")
        if record.state is State.GONE:
            cause = record.cause or "engine"
            reason = _REASONS.get(cause, _DEAD).format(cause=cause)
            return Gone(f"cannot {verb} this sandbox: {reason}; {_ADVICE}", cause)
        if record.state is State.PAUSED:
            return self.paused()
        what = "being adopted" if record.state is State.READY else record.state.value
        return NotReady(f"cannot {verb} this sandbox: it is {what}; try again")

    def paused(self) -> Paused:
        """Return the error for a call while the container is frozen."""
        record = self.record
        if record.cause == "asked":
            step = "resume it with POST .../sandbox/resume or `sandboxd resume`"
            return Paused(f"cannot use this sandbox: it is paused; {step}")
        if record.engine == "bubblewrap":
            step = "continue its processes with SIGCONT"
        else:
            step = f"run `{record.engine} unpause {(record.container or '')[:12]}`"
        return Paused(f"cannot use this sandbox: its container was paused from outside; {step}, then try again")

    async def wait_settled(self) -> None:
        """Wait for the move under way; raise its error if it was to bring the sandbox up."""
        is_coming_up = self.record.state in (State.CREATING, State.STARTING)
        if self.settled is not None:
            await self.settled.wait()
        if is_coming_up and self.failure is not None:
            raise self.failure.with_traceback(None)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Count work on the sandbox that is not a call of its runner, so that it does not become idle meanwhile."""
        self.active_calls += 1
        try:
            yield
        finally:
            self.call_ended()

    async def wait_quiet(self, deadline_s: float) -> None:
        """Wait until no call is under way, or until the deadline."""
        if self.active_calls:
            self._quiet = anyio.Event()
            with anyio.move_on_after(deadline_s):
                await self._quiet.wait()
            self._quiet = None

    def end_streams(self) -> None:
        """End the watches of its files and of its network access."""
        if self.runner is not None:
            self.runner.end_watches()
        if self.egress is not None:
            self.egress.audit.close()

    def call_ended(self) -> None:
        self.active_calls -= 1
        self.last_used = time.monotonic()
        if self.active_calls == 0 and self._quiet is not None:
            self._quiet.set()

    def idle_s(self, now: float) -> float:
        return 0.0 if self.active_calls else now - self.last_used

    @property
    def state(self) -> State:
        """The state as callers see it: STARTING during an adoption, because the mirror may not be current."""
        is_adopted = self.runner is not None and (self.listener is None or not self.listener.is_held)
        return State.STARTING if self.record.state is State.READY and not is_adopted else self.record.state

    @property
    def is_in_use(self) -> bool:
        """Whether it has started and its runner is connected, so that no move under way waits for the runner."""
        is_up = self.record.state in (State.READY, State.PAUSED)
        return is_up and self.runner is not None and self.runner.connected

    @property
    def owner(self) -> Owner:
        """The sandbox's owner. Only warm sandboxes have none, and the pool does not show them to callers."""
        if self.record.owner is None:
            raise SandboxNotFound("cannot use this sandbox: it has no owner yet")
        return self.record.owner

    def view(self, *, created: bool = False) -> SandboxView:
        """Return what a caller may see; `created` says whether its call created the sandbox."""
        record, owner = self.record, self.owner
        return SandboxView(
            tenant=owner.ref.tenant,
            session=owner.ref.session,
            user=owner.user,
            agent=owner.agent,
            state=self.state.value,
            engine=record.engine,
            container=record.container,
            created_at=record.created_at,
            from_pool=record.from_pool,
            cause=record.cause,
            image=record.shape.image,
            limits=record.shape.limits.model_dump(),
            created=created,
            labels=dict(record.options.labels),
            idle_timeout_s=self.idle_timeout_s,
            expires_at=record.expires_at,
            resume=record.options.resume,
            resting_since=record.resting_since,
            network=_network_view(record),
            parent=record.origin.parent,
            from_snapshot=record.origin.snapshot,
        )


def _network_view(record: Record) -> Literal["none"] | NetworkView:
    network = record.options.network
    return "none" if network is None else NetworkView.model_validate(network.model_dump())


class Call:
    """A call under way: a context manager that returns the runner."""

    __slots__ = ("_runner", "_sandbox")

    def __init__(self, sandbox: Sandbox, runner: RunnerClient) -> None:
        self._sandbox = sandbox
        self._runner = runner

    def __enter__(self) -> RunnerClient:
        self._sandbox.active_calls += 1
        return self._runner

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sandbox.call_ended()
