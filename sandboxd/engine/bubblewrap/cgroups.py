"""Control groups of containers: limits, counters, freezing and removal, in version 1 and version 2.

Each container has the group `sandboxd/NAME`. A process joins before it does any work. Nothing here starts or signals a
process, and outside `sandboxd/` it only enables the controllers that version 2 needs.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandboxd.limits import Limits
from sandboxd.models.sandbox import Stats

PARENT = "sandboxd"
CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD_US = 100_000
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The mount points of the controllers. In version 2 all controllers have the same root."""

    version: Literal[1, 2]
    roots: dict[str, Path]

    def directories(self, name: str) -> list[Path]:
        """Return the group's directory in each hierarchy, each once."""
        return [root / PARENT / name for root in dict.fromkeys(self.roots.values())]

    def directory(self, controller: str, name: str) -> Path | None:
        root = self.roots.get(controller)
        return None if root is None else root / PARENT / name


@dataclass(frozen=True, slots=True)
class Setting:
    controller: str
    file: str
    value: str
    is_required: bool = True


def parse_hierarchy(mountinfo: str) -> Hierarchy | None:
    """Find the hierarchy that has every required controller. A host may mount both versions."""
    legacy: dict[str, Path] = {}
    unified: Path | None = None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        target = Path(before.split(" ")[4])
        if kind == "cgroup":
            legacy.update(dict.fromkeys(options.split(","), target))
        elif kind == "cgroup2":
            unified = target
    if all(controller in legacy for controller in CONTROLLERS):
        wanted = (*CONTROLLERS, "cpuacct", "freezer")
        return Hierarchy(1, {controller: legacy[controller] for controller in wanted if controller in legacy})
    return None if unified is None else Hierarchy(2, dict.fromkeys(CONTROLLERS, unified))


def plan_settings(version: Literal[1, 2], limits: Limits) -> list[Setting]:
    """Return the values to write, in order. Swap counts as memory if the kernel can count it."""
    memory, quota = str(limits.memory_mb * _MIB), str(int(limits.cpus * _PERIOD_US))
    if version == 1:
        return [
            Setting("memory", "memory.limit_in_bytes", memory),
            Setting("memory", "memory.memsw.limit_in_bytes", memory, is_required=False),
            Setting("pids", "pids.max", str(limits.pids)),
            Setting("cpu", "cpu.cfs_period_us", str(_PERIOD_US)),
            Setting("cpu", "cpu.cfs_quota_us", quota),
        ]
    return [
        Setting("memory", "memory.max", memory),
        Setting("memory", "memory.swap.max", "0", is_required=False),
        Setting("pids", "pids.max", str(limits.pids)),
        Setting("cpu", "cpu.max", f"{quota} {_PERIOD_US}"),
    ]


def probe() -> tuple[Hierarchy | None, str]:
    """Return the hierarchy if the daemon may create groups in it, else None and the reason."""
    hierarchy = parse_hierarchy(Path("/proc/self/mountinfo").read_text())
    if hierarchy is None:
        return None, "no hierarchy has the memory, pids and cpu controllers"
    try:
        for root in dict.fromkeys(hierarchy.roots.values()):
            if hierarchy.version == 2:
                _switch_on(root)
            (root / PARENT).mkdir(exist_ok=True)
            if hierarchy.version == 2:
                _switch_on(root / PARENT)
    except OSError as error:
        return None, f"cgroup v{hierarchy.version} is not writable: {error.strerror}"
    if not all(os.access(root / PARENT, os.W_OK) for root in hierarchy.roots.values()):
        return None, f"cgroup v{hierarchy.version} is not writable"
    return hierarchy, f"cgroup v{hierarchy.version}"


def _switch_on(directory: Path) -> None:
    control = directory / "cgroup.subtree_control"
    missing = set(CONTROLLERS) - set(control.read_text().split())
    if missing:
        control.write_text(" ".join(f"+{controller}" for controller in sorted(missing)))


def create(hierarchy: Hierarchy, name: str, limits: Limits) -> None:
    """Create the group and set its limits. An empty group of that name, left by a crash, is reused."""
    for directory in hierarchy.directories(name):
        directory.mkdir(exist_ok=True)
    for setting in plan_settings(hierarchy.version, limits):
        directory = hierarchy.roots[setting.controller] / PARENT / name
        if setting.is_required or (directory / setting.file).exists():
            (directory / setting.file).write_text(setting.value)


def join(hierarchy: Hierarchy, name: str, pid: int) -> None:
    for directory in hierarchy.directories(name):
        (directory / "cgroup.procs").write_text(str(pid))


def members(hierarchy: Hierarchy, name: str) -> set[int]:
    found: set[int] = set()
    for directory in hierarchy.directories(name):
        found.update(int(pid) for pid in _read(directory / "cgroup.procs").split())
    return found


def oom_kills(hierarchy: Hierarchy, name: str) -> int:
    """Return how many of the group's processes the kernel killed because memory ran out."""
    directory = hierarchy.roots["memory"] / PARENT / name
    file = directory / ("memory.oom_control" if hierarchy.version == 1 else "memory.events")
    return _read_fields(file).get("oom_kill", 0)


def read_stats(hierarchy: Hierarchy, name: str) -> Stats:
    """Return the group's usage. Page cache that the kernel can drop at once does not count as memory."""
    memory, pids = hierarchy.roots["memory"] / PARENT / name, hierarchy.roots["pids"] / PARENT / name
    if hierarchy.version == 1:
        usage, droppable = "memory.usage_in_bytes", "total_inactive_file"
        accounts = hierarchy.directory("cpuacct", name)
        cpu_s = 0.0 if accounts is None else int(_read(accounts / "cpuacct.usage") or 0) / 1e9
    else:
        usage, droppable = "memory.current", "inactive_file"
        cpu_s = _read_fields(memory / "cpu.stat").get("usage_usec", 0) / 1e6
    used = int(_read(memory / usage) or 0) - _read_fields(memory / "memory.stat").get(droppable, 0)
    return Stats(memory_bytes=max(used, 0), cpu_seconds=cpu_s, pids=int(_read(pids / "pids.current") or 0))


def _read(file: Path) -> str:
    """Return a file of a group; empty if the group is gone, even if it disappears between open and read."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno == errno.ENODEV:
            return ""
        raise


def _read_fields(file: Path) -> dict[str, int]:
    pairs = (line.split() for line in _read(file).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def can_freeze(hierarchy: Hierarchy, name: str) -> bool:
    """Return whether the kernel can freeze this group. One that an earlier version created may lack what it takes."""
    file = _freezer(hierarchy, name)
    return file is not None and file.exists()


def set_frozen(hierarchy: Hierarchy, name: str, is_frozen: bool) -> None:
    """Begin to freeze every process of the group, or to let all of them continue. A group that is gone is ignored."""
    if (file := _freezer(hierarchy, name)) is not None and file.exists():
        values = ("THAWED", "FROZEN") if hierarchy.version == 1 else ("0", "1")
        file.write_text(values[is_frozen])


def is_frozen(hierarchy: Hierarchy, name: str) -> bool:
    """Return whether every process of the group is frozen."""
    file = _freezer(hierarchy, name)
    if file is None:
        return False
    if hierarchy.version == 1:
        return _read(file).strip() == "FROZEN"
    return _read_fields(file.with_name("cgroup.events")).get("frozen") == 1


def _freezer(hierarchy: Hierarchy, name: str) -> Path | None:
    if hierarchy.version == 2:
        return hierarchy.roots["pids"] / PARENT / name / "cgroup.freeze"
    directory = hierarchy.directory("freezer", name)
    return None if directory is None else directory / "freezer.state"


def remove(hierarchy: Hierarchy, name: str) -> bool:
    """Delete the group if it exists. Return False if it still has a process."""
    is_gone = True
    for directory in hierarchy.directories(name):
        try:
            directory.rmdir()
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            is_gone = False
    return is_gone
