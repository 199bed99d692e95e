"""Findings about how well bubblewrap isolates on this host, for `sandboxd doctor`. Changes nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from sandboxd.engine.bubblewrap.cgroups import Hierarchy
from sandboxd.engine.protocol import Finding

_SHOWN_PATH = "/usr/local/bin:/usr/bin:/bin"
_SWITCHES = (
    ("/proc/sys/user/max_user_namespaces", "0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0"),
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1"),
)


def diagnose(hierarchy: Hierarchy | None, why_no_cgroup: str, has_filter: bool) -> list[Finding]:
    return [
        _program(),
        user_namespaces(),
        _limits(hierarchy, why_no_cgroup),
        _filter(has_filter),
        _identity(),
        _tools(),
        Finding(
            "root filesystem",
            "weak",
            "there is no separate image: the host's /usr is shown read-only, with its set-uid files (without effect)",
            "use Docker, or give a directory with a root filesystem as the image",
        ),
        Finding("mandatory access control", "weak", "no AppArmor or SELinux profile is applied", "use Docker"),
    ]


def _program() -> Finding:
    try:
        answer = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("engine", "missing", f"bwrap does not run: {error}", "install the package bubblewrap")
    version = answer.stdout.split()[-1]
    if tuple(int(part) for part in version.split(".")[:2]) < (0, 8):
        return Finding("engine", "missing", f"bwrap {version} cannot disable user namespaces", "install 0.8.0")
    return Finding("engine", "ok", f"bwrap {version}")


def user_namespaces() -> Finding:
    """Check the sysctls that forbid user namespaces to ordinary users."""
    for path, forbidding in _SWITCHES:
        file = Path(path)
        if file.exists() and file.read_text().strip() == forbidding:
            name = path.removeprefix("/proc/sys/").replace("/", ".")
            return Finding("user namespace", "missing", f"{name} is {forbidding}", f"sysctl -w {name}=…")
    return Finding("user namespace", "ok", "ordinary users may create them")


def _limits(hierarchy: Hierarchy | None, why: str) -> Finding:
    if hierarchy is not None:
        return Finding("limits", "ok", f"memory, processes and CPU through cgroup v{hierarchy.version}")
    return Finding(
        "limits",
        "weak",
        f"{why}; only rlimits: memory per process, processes per container, no limit on CPU, "
        "and an out-of-memory kill is not reported as such",
        "run the daemon as root, or use Docker",
    )


def _filter(has_filter: bool) -> Finding:
    if has_filter:
        return Finding("seccomp", "ok", "the same filter as with Docker")
    return Finding("seccomp", "weak", "libseccomp is not installed: no filter", "install libseccomp2")


def _tools() -> Finding:
    """Check for common programs, because with the host as the image the agent has only what the host has."""
    missing = [tool for tool in ("python3", "bash", "git", "rg") if shutil.which(tool, path=_SHOWN_PATH) is None]
    if "python3" in missing:
        return Finding("programs", "missing", "no python3 in /usr: no container can run", "install python3")
    if missing:
        return Finding("programs", "weak", f"the host has no {', '.join(missing)}", "install them on the host")
    return Finding("programs", "ok", "the programs that agents use most are installed")


def _identity() -> Finding:
    if os.geteuid() == 0:
        return Finding("user", "ok", "containers run as their own user, never as root")
    return Finding(
        "user",
        "weak",
        "outside its namespaces a container is the daemon's own user: an escape reaches the daemon's files",
        "run the daemon as root, or as a user that owns nothing else",
    )
