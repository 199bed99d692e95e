"""The embedded engine: bubblewrap containers, which survive a restart of the daemon.

A container is a detached bwrap process with PID 1 inside, a record in the state directory and, if the host allows it, a
control group. The engine never runs a process as the host's root, never uses a shell, and keeps no state in memory: it
reads the records and the kernel each time.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
from anyio import to_thread

from sandboxd.engine import seccomp
from sandboxd.engine.bubblewrap import cgroups, diagnosis, processes, records, rootfs
from sandboxd.engine.bubblewrap.launch import LaunchPlan, PendingLaunch
from sandboxd.engine.bubblewrap.process_events import ProcessEvents
from sandboxd.engine.bubblewrap.processes import ProcessRef
from sandboxd.engine.bubblewrap.records import ContainerRecord, Records
from sandboxd.engine.protocol import LABEL_INSTANCE, Container, ContainerDied, ContainerSpec, Finding
from sandboxd.errors import Cause, EngineRefused, EngineUnavailable, HostFull
from sandboxd.models.sandbox import Stats

T = TypeVar("T")

_KILLED_EXIT_CODE = 128 + 9
_DEATH_PATIENCE_S = 10.0
_CLEANUP_S = 60.0
_FREEZE_S = 10.0
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.25


class BubblewrapEngine:
    """Owns the state directory and the control groups of the containers in it."""

    name = "bubblewrap"

    def __init__(self, state_dir: Path) -> None:
        bwrap = shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")
        if bwrap is None:
            raise EngineUnavailable("cannot use bubblewrap: bwrap is not installed; install the package bubblewrap")
        self._bwrap = bwrap
        self._records = Records(state_dir.resolve())
        try:
            self._records.open()
        except OSError as error:
            raise EngineUnavailable(f"cannot use the state directory {state_dir}: {error.strerror}") from error
        self._hierarchy, self._why_no_cgroup = cgroups.probe()
        self._boot_id = processes.boot_id()
        self._threads = anyio.CapacityLimiter(4)
        self._streams: weakref.WeakSet[ProcessEvents] = weakref.WeakSet()

    async def launch(self, spec: ContainerSpec) -> Container:
        if not records.is_legal_name(spec.name):
            raise EngineRefused("cannot launch: the container's name has characters other than A-Z a-z 0-9 _ . -")
        if spec.uid == 0 or spec.gid == 0:
            raise EngineRefused("cannot launch: a container never runs as root; give another uid and gid")
        plan = await self._run(LaunchPlan.of, spec, self._bwrap, self._records, self._hierarchy is not None)
        record = ContainerRecord(
            id=records.mint_id(spec.name),
            name=spec.name,
            image=spec.image,
            labels=dict(spec.labels),
            boot_id=self._boot_id,
            has_cgroup=self._hierarchy is not None,
        )
        await self._remove_namesake(record)
        try:
            await self._run(self._records.create, record)
            container = await self._start(record, spec, plan)
            await anyio.lowlevel.checkpoint_if_cancelled()  # cancelled while a thread was working
            return container
        except BaseException as error:
            with anyio.move_on_after(_CLEANUP_S, shield=True):
                await self.remove(record.id)
            if isinstance(error, OSError):
                raise _refusal(spec.name, error) from None
            raise

    async def _remove_namesake(self, record: ContainerRecord) -> None:
        """Remove an earlier container of this name, unless it belongs to another daemon."""
        other: ContainerRecord | None = await self._run(self._records.read, record.name)
        if other is None:
            return
        if other.labels.get(LABEL_INSTANCE) != record.labels.get(LABEL_INSTANCE):
            raise EngineRefused(f"cannot launch {record.name}: another daemon has a container of that name")
        await self._destroy(other)

    async def _start(self, record: ContainerRecord, spec: ContainerSpec, plan: LaunchPlan) -> Container:
        if self._hierarchy is not None:
            await self._run(cgroups.create, self._hierarchy, record.name, spec.limits)
        launch = await self._run(plan.spawn)
        try:
            # The process waits for its plan, so it is recorded and limited before it runs anything.
            record = replace(record, monitor=launch.monitor)
            await self._run(self._records.update, record)
            if self._hierarchy is not None:
                await self._run(cgroups.join, self._hierarchy, record.name, launch.monitor.pid)
            await self._run(launch.send_plan)
            await launch.wait_ready()
            record = await self._complete(record, launch)
        finally:
            launch.close()
        for stream in self._streams:
            stream.watch(record.id, record.life)
        return await self._describe(record)

    async def _complete(self, record: ContainerRecord, launch: PendingLaunch) -> ContainerRecord:
        """Wait until bwrap has become the command, however long that takes on a busy host, or raise the reason."""
        status = await self._run(self._records.read_status, record.name)
        stat = None if status.init_pid is None else processes.read_stat(status.init_pid)
        if stat is not None:
            record = replace(record, init=stat.ref)
            await self._run(self._records.update, record)
            if await _becomes_command(stat.ref, launch.monitor):
                return record
        if not await processes.wait_exit(launch.monitor, _DEATH_PATIENCE_S):
            raise EngineUnavailable(
                f"cannot launch {record.name}: bwrap neither started the command nor ended; try again"
            )
        status = await self._run(self._records.read_status, record.name)
        if status.exit_code is not None:
            return record
        if said := launch.read_error():
            raise EngineRefused(f"cannot launch {record.name}: {said}")
        raise EngineUnavailable(f"cannot launch {record.name}: bwrap was killed before it ran the command; try again")

    async def remove(self, container_id: str) -> None:
        record = await self._read(container_id)
        if record is not None:
            await self._destroy(record)

    async def _destroy(self, record: ContainerRecord) -> None:
        """Kill the whole container and remove its record. A previous daemon may have died after any step."""
        if record.has_cgroup and self._hierarchy is not None:
            await self._run(cgroups.set_frozen, self._hierarchy, record.name, False)  # frozen processes do not die
        for process in await self._run(self._processes_of, record):
            processes.signal_group(process, signal.SIGKILL)
            processes.kill(process)
            if not await processes.wait_exit(process, _DEATH_PATIENCE_S):
                raise EngineUnavailable(
                    f"cannot remove {record.name}: process {process.pid} survived SIGKILL: it is stuck in the kernel"
                )
            processes.reap(process)
        if record.has_cgroup and self._hierarchy is not None:
            await self._remove_cgroup(self._hierarchy, record.name)
        await self._run(self._records.delete, record.name)

    def _processes_of(self, record: ContainerRecord) -> list[ProcessRef]:
        """Kill PID 1 first, because the kernel then kills everything inside."""
        if record.boot_id != self._boot_id:
            return []
        if record.init is None and record.monitor is not None:
            # bwrap may be creating PID 1 at this moment. Once stopped, it has either recorded the pid or still has that
            # process in its own group.
            processes.signal_group(record.monitor, signal.SIGSTOP)
        record = self._adopt(record)
        found = [process for process in (record.init, record.monitor) if process is not None]
        if record.has_cgroup and self._hierarchy is not None:
            stats = (processes.read_stat(pid) for pid in cgroups.members(self._hierarchy, record.name))
            found += [stat.ref for stat in stats if stat is not None and stat.ref not in found]
        return found

    async def _remove_cgroup(self, hierarchy: cgroups.Hierarchy, name: str) -> None:
        # A dead process leaves its group shortly after its pidfd becomes readable, without an event; on a busy host
        # that takes as long as the kernel needs to schedule the rest of its exit.
        pause_s = _FIRST_PAUSE_S
        with anyio.move_on_after(_CLEANUP_S):
            while not await self._run(cgroups.remove, hierarchy, name):
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            return
        raise EngineUnavailable(f"cannot remove {name}: its control group is still in use; try again")

    async def pause(self, container_id: str) -> None:
        await self._set_paused(container_id, is_paused=True)

    async def resume(self, container_id: str) -> None:
        await self._set_paused(container_id, is_paused=False)

    async def _set_paused(self, container_id: str, *, is_paused: bool) -> None:
        verb = "pause" if is_paused else "resume"
        record = await self._read(container_id)
        if record is None or not self._is_alive(record):
            raise EngineRefused(f"cannot {verb} this container: it does not run")
        try:
            with anyio.fail_after(_FREEZE_S):
                pause_s = _FIRST_PAUSE_S
                while not await self._run(self._try_paused, record, is_paused):
                    await anyio.sleep(pause_s)  # the kernel has no event for this
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except TimeoutError:
            if is_paused:
                await self._run(self._try_paused, record, False)
            raise EngineUnavailable(
                f"cannot {verb} {record.name}: a process is stuck in the kernel; try again"
            ) from None
        for stream in self._streams:
            stream.report_pause(container_id, is_paused=is_paused)

    def _try_paused(self, record: ContainerRecord, is_paused: bool) -> bool:
        """Freeze or thaw the container; return whether this is complete."""
        if self._hierarchy is not None and record.has_cgroup and cgroups.can_freeze(self._hierarchy, record.name):
            cgroups.set_frozen(self._hierarchy, record.name, is_paused)
            return cgroups.is_frozen(self._hierarchy, record.name) == is_paused
        init = self._adopt(record).init
        return init is None or processes.set_stopped(init, is_paused)

    def _is_paused(self, container_id: str) -> bool:
        name = records.name_of(container_id)
        return name is not None and self._hierarchy is not None and cgroups.is_frozen(self._hierarchy, name)

    async def inspect(self, container_id: str) -> Container | None:
        record = await self._read(container_id)
        return None if record is None else await self._describe(record)

    async def find(self, labels: Mapping[str, str]) -> list[Container]:
        found: list[Container] = []
        for record in await self._run(self._records.read_all):
            if labels.items() <= record.labels.items():
                container = await self._describe(record)
                found.append(container)
                if container.running:
                    for stream in self._streams:
                        stream.watch(record.id, self._adopt(record).life)
                        if container.paused:
                            stream.note_pause(record.id)
        return found

    def events(self) -> ProcessEvents:
        stream = ProcessEvents(self._load_living, self._explain, self._is_paused)
        self._streams.add(stream)
        return stream

    async def stats(self, container_id: str) -> Stats:
        record = await self._read(container_id)
        if record is None:
            raise EngineRefused("cannot read stats: the engine has no such container")
        return await self._run(self._read_stats, record)

    def _read_stats(self, record: ContainerRecord) -> Stats:
        if record.has_cgroup and self._hierarchy is not None:
            return cgroups.read_stats(self._hierarchy, record.name)
        if record.init is None or not processes.is_alive(record.init):
            return Stats(memory_bytes=0, cpu_seconds=0.0, pids=0)
        pids = processes.descendants(record.init.pid)
        stats = [stat for stat in map(processes.read_stat, pids) if stat is not None]
        return Stats(
            memory_bytes=sum(processes.resident_bytes(pid) for pid in pids),
            cpu_seconds=sum(stat.cpu_ticks for stat in stats) / os.sysconf("SC_CLK_TCK"),
            pids=len(stats),
        )

    async def has_image(self, image: str) -> bool:
        return await self._run(rootfs.is_image, image)

    async def find_runtime(self, name: str | None) -> str | None:
        if name is not None:
            raise EngineRefused(
                f"cannot use the runtime {name}: bubblewrap has no runtimes; use --engine docker, or unset "
                "SANDBOXD_RUNTIME"
            )
        return None

    async def diagnose(self) -> list[Finding]:
        has_filter = await self._run(seccomp.bpf_program) is not None
        return await self._run(diagnosis.diagnose, self._hierarchy, self._why_no_cgroup, has_filter)

    async def aclose(self) -> None:
        for stream in list(self._streams):
            stream.close()

    async def _read(self, container_id: str) -> ContainerRecord | None:
        name = records.name_of(container_id)
        record = None if name is None else await self._run(self._records.read, name)
        return record if record is not None and record.id == container_id else None

    def _adopt(self, record: ContainerRecord) -> ContainerRecord:
        """Complete the record of a container whose daemon died between starting it and recording its PID 1."""
        if record.init is not None or record.monitor is None or not processes.is_alive(record.monitor):
            return record
        # The monitor is alive, and only it reaps its child, so the pid that it wrote is still that child.
        pid = self._records.read_status(record.name).init_pid
        stat = None if pid is None else processes.read_stat(pid)
        return record if stat is None else replace(record, init=stat.ref)

    async def _describe(self, record: ContainerRecord) -> Container:
        record = await self._run(self._adopt, record)
        if self._is_alive(record):
            pid = None if record.init is None else record.init.pid
            stat = None if pid is None else processes.read_stat(pid)
            is_stopped = stat is not None and stat.is_stopped
            is_paused = is_stopped or await self._run(self._is_paused, record.id)
            return Container(record.id, record.name, record.labels, running=True, pid=pid, paused=is_paused)
        if record.boot_id == self._boot_id and record.monitor is not None:
            await processes.wait_exit(record.monitor, _DEATH_PATIENCE_S)  # it writes the exit code, then dies
            processes.reap(record.monitor)
        cause, exit_code = await self._run(self._cause_of, record)
        return Container(record.id, record.name, record.labels, running=False, exit_code=exit_code, cause=cause)

    def _cause_of(self, record: ContainerRecord) -> tuple[Cause, int | None]:
        exit_code = self._records.read_status(record.name).exit_code
        if exit_code is None and record.init is None:
            return "engine", None
        if exit_code not in (None, _KILLED_EXIT_CODE):
            return "exited", exit_code
        # No exit code: the monitor was killed too, and its memory counts as the container's.
        if record.has_cgroup and self._hierarchy is not None and cgroups.oom_kills(self._hierarchy, record.name):
            return "oom", exit_code
        return "killed", exit_code

    def _is_alive(self, record: ContainerRecord) -> bool:
        return record.boot_id == self._boot_id and record.life is not None and processes.is_alive(record.life)

    async def _load_living(self) -> dict[str, ProcessRef | None]:
        found = [self._adopt(record) for record in await self._run(self._records.read_all)]
        return {record.id: record.life for record in found if self._is_alive(record)}

    async def _explain(self, container_id: str) -> ContainerDied:
        container = await self.inspect(container_id)
        if container is None or container.cause is None:  # removed in the meantime, which kills it
            return ContainerDied(container_id, "killed", _KILLED_EXIT_CODE)
        return ContainerDied(container_id, container.cause, container.exit_code)

    async def _run(self, function: Callable[..., T], *arguments: object) -> T:
        return await to_thread.run_sync(function, *arguments, limiter=self._threads)


async def _becomes_command(init: ProcessRef, monitor: ProcessRef) -> bool:
    """Wait while PID 1 is still bwrap. Return False if it ended instead.

    An exec raises no event, so this polls; in nearly every launch the first check finds the command. A failed exec ends
    bwrap, which wakes this at once. There is no deadline, because a live bwrap is only waiting for CPU.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        stat = processes.read_stat(init.pid)
        if stat is None or stat.ref != init or not stat.is_alive:
            return False
        if stat.program != "bwrap":
            return True
        await processes.wait_gone(monitor, pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _refusal(name: str, error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return HostFull(f"cannot launch {name}: {error.strerror}")
    if isinstance(error, FileExistsError):
        return EngineRefused(f"cannot launch {name}: a container of that name was launched at the same time")
    return EngineRefused(f"cannot launch {name}: {error.strerror}")
