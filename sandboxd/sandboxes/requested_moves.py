"""The moves that callers request of a sandbox that exists: wake up, pause, resume, hibernate, change and destroy.

A request waits for the move under way, then decides by the state that it left. It never makes a new sandbox; the
`Provisioner` does.
"""

from __future__ import annotations

from collections.abc import Callable

from memo.ids import SessionRef
from sandboxd.errors import SandboxdError
from sandboxd.models.sandbox import SandboxPatch, SandboxView
from sandboxd.sandboxes.effects import Effects
from sandboxd.sandboxes.hibernator import Hibernator
from sandboxd.sandboxes.lifecycle import (
    RESTING,
    DestroyAsked,
    HibernateAsked,
    LaunchAsked,
    Options,
    OptionsChanged,
    PauseAsked,
    ResumeAsked,
    State,
)
from sandboxd.sandboxes.moves import Moves
from sandboxd.sandboxes.network_setup import NetworkSetup
from sandboxd.sandboxes.options import changed_options
from sandboxd.sandboxes.record_factory import RecordFactory
from sandboxd.sandboxes.sandbox import Sandbox
from sandboxd.sandboxes.table import SandboxTable


class RequestedMoves:
    """`claim_room` refuses one more container than the daemon can run, and makes room for it otherwise."""

    def __init__(
        self,
        sandboxes: SandboxTable,
        records: RecordFactory,
        effects: Effects,
        moves: Moves,
        networks: NetworkSetup,
        hibernator: Hibernator,
        claim_room: Callable[[], None],
    ) -> None:
        self._sandboxes = sandboxes
        self._records = records
        self._effects = effects
        self._moves = moves
        self._networks = networks
        self._hibernator = hibernator
        self._claim_room = claim_room

    async def wake(self, ref: SessionRef) -> Sandbox:
        """Return the session's sandbox. One that is hibernated or paused is resumed first, if it may be."""
        sandbox = self._sandboxes.find(ref)
        while sandbox.record.state is not State.READY:
            if sandbox.is_waking:
                await sandbox.wait_settled()
            elif sandbox.settled is not None and sandbox.record.state in (State.HIBERNATED, State.PAUSED):
                await sandbox.settled.wait()  # it is just falling asleep, or waking up
            elif sandbox.may_wake and sandbox.settled is None:
                await self.resume(ref)
            else:
                break
            sandbox = self._sandboxes.find(ref)
        return sandbox

    async def at_rest(self, ref: SessionRef) -> Sandbox:
        """Return the session's sandbox once no move is under way."""
        while (sandbox := self._sandboxes.find(ref)).settled is not None:
            await sandbox.settled.wait()
        return sandbox

    async def pause(self, ref: SessionRef) -> SandboxView:
        sandbox = await self.at_rest(ref)
        if sandbox.record.state is State.READY:
            await self._moves.finish_event(sandbox, PauseAsked())
        elif sandbox.record.state is not State.PAUSED:
            raise sandbox.unfit("pause")
        return sandbox.view()

    async def resume(self, ref: SessionRef) -> SandboxView:
        while True:
            sandbox = await self.at_rest(ref)
            match sandbox.record.state:
                case State.READY:
                    return sandbox.view()
                case State.PAUSED:
                    await self.resume_paused(sandbox)
                case State.HIBERNATED:
                    self.relaunch(sandbox)
                    await sandbox.wait_settled()
                case _:
                    raise sandbox.unfit("resume")

    async def resume_paused(self, sandbox: Sandbox) -> None:
        if sandbox.record.cause != "asked":
            raise sandbox.paused()  # whatever paused it from outside also resumes it
        await self._moves.finish_event(sandbox, ResumeAsked())

    def relaunch(self, sandbox: Sandbox) -> None:
        """Begin to give a hibernated or dead sandbox a container."""
        self._claim_room()
        self._moves.bring_up(sandbox, LaunchAsked(self._records.expiry(sandbox.record.options)))

    async def hibernate(self, ref: SessionRef) -> SandboxView:
        sandbox = await self.at_rest(ref)
        if sandbox.record.state in (State.READY, State.PAUSED):
            await self._moves.finish_event(sandbox, HibernateAsked("asked"))
        elif sandbox.record.state not in RESTING:
            raise sandbox.unfit("hibernate")
        return sandbox.view()

    async def update(self, ref: SessionRef, patch: SandboxPatch) -> SandboxView:
        await self._networks.check(ref.tenant, patch)
        sandbox = await self.at_rest(ref)
        await self.change_options(sandbox, changed_options(sandbox.record.options, patch), patch)
        return sandbox.view()

    async def change_options(self, sandbox: Sandbox, options: Options, patch: SandboxPatch) -> None:
        """Give the sandbox these options, which `patch` asks for."""
        expires_at = sandbox.record.expires_at
        if "ttl_s" in patch.model_fields_set and sandbox.record.state not in RESTING:
            expires_at = self._records.expiry(options)
        before = sandbox.record.options
        await self._moves.finish_event(sandbox, OptionsChanged(options, expires_at))
        self._hibernator.nudge()
        if options.network != before.network and sandbox.record.state is State.READY:
            await self._moves.finish(sandbox, self._change_network, before)

    async def _change_network(self, sandbox: Sandbox, before: Options) -> None:
        """Give a running sandbox the network access of its record, or the earlier one again if that fails."""
        try:
            await self._networks.apply(sandbox)
        except SandboxdError:
            await self._effects.advance(sandbox, OptionsChanged(before, sandbox.record.expires_at))
            await self._networks.apply(sandbox)
            raise

    async def destroy(self, sandbox: Sandbox) -> None:
        """Remove the sandbox and all its files, and cancel the bring-up under way."""
        if sandbox.scope is not None:
            sandbox.scope.cancel()
        while sandbox.settled is not None:
            await sandbox.settled.wait()
        if sandbox.record.state is State.REMOVED:
            return
        await self._moves.finish_event(sandbox, DestroyAsked())
