"""The hardening of containers: every flag in one value, and its translation for an engine.

`HARDENING` is what a reviewer reads. The functions below only translate it, together with what differs between
containers, into the body of an engine's create call. Nothing here calls an engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sandboxd.engine.protocol import ContainerSpec, Mount
from sandboxd.errors import EngineRefused

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Ulimit:
    name: str
    soft: int
    hard: int


@dataclass(frozen=True, slots=True)
class Hardening:
    """The settings that are the same for every sandbox on every engine."""

    hostname: str = "sandbox"
    network: str = "none"
    resolver: str = "127.0.0.1"
    """An address where nothing listens. Without it the engine would copy the host's resolver and search domains."""
    ipc: str = "private"
    cgroup_namespace: str = "private"
    read_only_root: bool = True
    dropped_capabilities: tuple[str, ...] = ("ALL",)
    no_new_privileges: bool = True
    tmp_size_mb: int = 128
    tmp_flags: tuple[str, ...] = ("rw", "noexec", "nosuid", "nodev")
    """`noexec` becomes `exec` for a spec with `tmp_exec`."""
    tmp_mode: str = "1777"
    shm_size_mb: int = 64
    open_files: int = 8192
    core_bytes: int = 0
    oom_score_adj: int = 500
    """When the whole host runs out of memory, a sandbox dies before the daemon does."""
    log_driver: str = "none"
    restart: str = "no"
    cpu_period_us: int = 100_000
    masked_paths: tuple[str, ...] = (
        "/proc/acpi",
        "/proc/asound",
        "/proc/cmdline",
        "/proc/interrupts",
        "/proc/kcore",
        "/proc/keys",
        "/proc/latency_stats",
        "/proc/sched_debug",
        "/proc/scsi",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/sys/devices/virtual/dmi",
        "/sys/devices/virtual/powercap",
        "/sys/firmware",
    )
    read_only_paths: tuple[str, ...] = (
        "/proc/bus",
        "/proc/fs",
        "/proc/irq",
        "/proc/sys",
        "/proc/sysrq-trigger",
    )


HARDENING = Hardening()


def ulimits_of(spec: ContainerSpec, hardening: Hardening = HARDENING) -> tuple[Ulimit, ...]:
    """Return the limits of every process. No nproc: the kernel counts it across sandboxes. `pids` is the limit."""
    largest_file = spec.limits.disk_mb * _MIB
    return (
        Ulimit("core", hardening.core_bytes, hardening.core_bytes),
        Ulimit("fsize", largest_file, largest_file),
        Ulimit("nofile", hardening.open_files, hardening.open_files),
    )


def tmp_options(spec: ContainerSpec, hardening: Hardening = HARDENING) -> str:
    """Return the mount options of `/tmp`. Its inodes need no bound, because the kernel counts them as memory."""
    flags = ("exec" if flag == "noexec" and spec.tmp_exec else flag for flag in hardening.tmp_flags)
    return ",".join((*flags, f"size={hardening.tmp_size_mb}m", f"mode={hardening.tmp_mode}"))


def environment_of(spec: ContainerSpec) -> list[str]:
    """Return the environment as `NAME=value` lines; refuse values that no process could receive."""
    for name, value in spec.env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise EngineRefused(
                "cannot launch: an environment name is empty or contains '=', or a name or value contains a NUL"
            )
    return [f"{name}={value}" for name, value in spec.env.items()]


def render_container(
    spec: ContainerSpec, seccomp: str, hardening: Hardening = HARDENING, *, is_podman: bool = False
) -> dict[str, Any]:
    """Return the body of the create call. `seccomp` is the profile in the form that the engine expects."""
    if not spec.command:
        raise EngineRefused("cannot launch: the command is empty")
    if spec.uid == 0 or spec.gid == 0:
        raise EngineRefused("cannot launch: a container never runs as root; give another uid and gid")
    return {
        "Image": spec.image,
        # Always set both, because otherwise the image's entry point would run instead.
        "Entrypoint": list(spec.command[:1]),
        "Cmd": list(spec.command[1:]),
        "Env": environment_of(spec),
        "User": f"{spec.uid}:{spec.gid}",
        "WorkingDir": "/",
        "Hostname": hardening.hostname,
        "Labels": dict(spec.labels),
        "Tty": False,
        "OpenStdin": False,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": render_host_config(spec, seccomp, hardening, is_podman=is_podman),
    }


def render_host_config(
    spec: ContainerSpec, seccomp: str, hardening: Hardening = HARDENING, *, is_podman: bool = False
) -> dict[str, Any]:
    """Return the part that decides isolation. Disabled features are explicit, so that inspection can be compared."""
    memory_bytes = spec.limits.memory_mb * _MIB
    security = [f"seccomp={seccomp}"]
    if hardening.no_new_privileges:
        security.insert(0, "no-new-privileges")
    if is_podman:  # it ignores MaskedPaths, and takes them as an option that Docker does not support
        security.append(f"mask={':'.join(hardening.masked_paths)}")
    rendered: dict[str, Any] = {
        "Privileged": False,
        "CapDrop": list(hardening.dropped_capabilities),
        "SecurityOpt": security,
        "ReadonlyRootfs": hardening.read_only_root,
        "MaskedPaths": list(hardening.masked_paths),
        "ReadonlyPaths": list(hardening.read_only_paths),
        "NetworkMode": hardening.network,
        "Dns": [hardening.resolver],
        "DnsSearch": ["."],
        "PublishAllPorts": False,
        "IpcMode": hardening.ipc,
        "CgroupnsMode": hardening.cgroup_namespace,
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "",
        "Mounts": [_render_mount(mount) for mount in spec.mounts],
        "Tmpfs": {"/tmp": tmp_options(spec, hardening)},  # noqa: S108 - the container's, not the host's
        "ShmSize": hardening.shm_size_mb * _MIB,
        "Memory": memory_bytes,
        "MemorySwap": memory_bytes,  # memory plus swap, so no swap
        "OomKillDisable": False,
        "OomScoreAdj": hardening.oom_score_adj,
        "PidsLimit": spec.limits.pids,
        # A quota instead of a number of CPUs, because the engine would refuse more CPUs than the host has.
        "CpuPeriod": hardening.cpu_period_us,
        "CpuQuota": math.ceil(spec.limits.cpus * hardening.cpu_period_us),
        "Ulimits": [
            {"Name": ulimit.name, "Soft": ulimit.soft, "Hard": ulimit.hard} for ulimit in ulimits_of(spec, hardening)
        ],
        "LogConfig": {"Type": hardening.log_driver, "Config": {}},
        "RestartPolicy": {"Name": hardening.restart, "MaximumRetryCount": 0},
        "AutoRemove": False,  # a dead container stays until its cause of death is read
        "Init": False,
    }
    if spec.runtime is not None:
        rendered["Runtime"] = spec.runtime
    return rendered


def _render_mount(mount: Mount) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": str(mount.source),
        "Target": mount.target,
        "ReadOnly": mount.read_only,
        # Not recursive: a mount below the source would be visible too, and writable.
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
    }
