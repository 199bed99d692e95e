"""Findings about isolation on this host, from an engine's own description. Pure: values in, findings out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sandboxd.engine.protocol import Finding

Version = tuple[int, int, int]

_OLDEST_DOCKER: Version = (20, 10, 0)
_MAINTAINED_DOCKER: Version = (25, 0, 0)
_FIXED_FD_LEAK: Version = (1, 1, 12)
_FIXED_MASKED_PATHS: Mapping[tuple[int, int], Version] = {(1, 2): (1, 2, 8), (1, 3): (1, 3, 3)}
_NEWER_RUNC: Version = (1, 4, 0)


def parse_version(text: str) -> Version | None:
    """Parse `20.10.24+dfsg1` or `v1.1` as three numbers."""
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    if found is None:
        return None
    return int(found[1]), int(found[2]), int(found[3] or 0)


def diagnose_engine(info: Mapping[str, Any], version: Mapping[str, Any]) -> list[Finding]:
    """Turn the answers of `/info` and `/version` into findings, the engine itself first."""
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    return [
        _engine(version),
        *_runc(version),
        _cgroup(info),
        *_controllers(info),
        _seccomp(options),
        _mandatory_access(options),
        _user_namespace(options),
        _storage(info),
        _runtimes(info, version),
    ]


def is_podman(version: Mapping[str, Any]) -> bool:
    return any("podman" in str(part.get("Name", "")).lower() for part in version.get("Components") or ())


def _component(version: Mapping[str, Any], name: str) -> str:
    for part in version.get("Components") or ():
        if str(part.get("Name", "")).lower() == name:
            return str(part.get("Version", ""))
    return ""


def _engine(version: Mapping[str, Any]) -> Finding:
    text = str(version.get("Version", "unknown"))
    if is_podman(version):
        return Finding("engine", "ok", f"Podman {text}")
    parsed = parse_version(text)
    detail = f"Docker {text}"
    if parsed is None or parsed >= _MAINTAINED_DOCKER:
        return Finding("engine", "ok", detail)
    if parsed < _OLDEST_DOCKER:
        return Finding("engine", "missing", f"{detail} is older than 20.10", "update Docker to 20.10 or newer")
    return Finding(
        "engine",
        "weak",
        f"{detail} is no longer maintained upstream",
        "update Docker, or make sure that your distribution still fixes this version",
    )


def _runc(version: Mapping[str, Any]) -> Iterator[Finding]:
    text = _component(version, "runc")
    parsed = parse_version(text)
    if parsed is None:
        return
    fixed = _FIXED_MASKED_PATHS.get(parsed[:2], _NEWER_RUNC)
    if parsed < _FIXED_FD_LEAK:
        flaw, target = "CVE-2024-21626, a leaked descriptor of the host", "1.1.12"
    elif parsed < fixed:
        flaw, target = "CVE-2025-31133, masked paths that can be replaced", "1.2.8 or 1.3.3"
    else:
        yield Finding("runc", "ok", f"runc {text}")
        return
    advice = f"update runc to {target} or newer, or check that your distribution's package carries the fix"
    yield Finding("runc", "weak", f"runc {text} is open to {flaw}", advice)


def _cgroup(info: Mapping[str, Any]) -> Finding:
    number = str(info.get("CgroupVersion") or "1")
    return Finding("cgroup", "ok", f"cgroup v{number}, driver {info.get('CgroupDriver', 'unknown')}")


def _controllers(info: Mapping[str, Any]) -> Iterator[Finding]:
    wanted = {"memory": "MemoryLimit", "swap": "SwapLimit", "cpu": "CpuCfsQuota", "pids": "PidsLimit"}
    for controller, key in wanted.items():
        subject = f"limit of {controller}"
        if info.get(key, True):
            yield Finding(subject, "ok", "enforced by the kernel")
        elif controller == "swap":
            yield Finding(subject, "weak", "swap is not counted", "boot with swapaccount=1 or disable swap")
        else:
            advice = f"boot with the {controller} cgroup controller, and delegate it if the engine is rootless"
            yield Finding(subject, "missing", "the kernel or the engine does not enforce it", advice)


def _named(options: list[str], name: str) -> bool:
    return any(option == name or option.startswith(f"name={name}") for option in options)


def _seccomp(options: list[str]) -> Finding:
    if _named(options, "seccomp"):
        return Finding("seccomp", "ok", "our own allow-list is applied to every container")
    return Finding("seccomp", "missing", "the engine has no seccomp", "use a kernel with CONFIG_SECCOMP_FILTER")


def _mandatory_access(options: list[str]) -> Finding:
    for name in ("apparmor", "selinux"):
        if _named(options, name):
            return Finding("mandatory access control", "ok", name)
    return Finding(
        "mandatory access control",
        "weak",
        "neither AppArmor nor SELinux is enabled",
        "enable one of them in the kernel as a second line of defence",
    )


def _user_namespace(options: list[str]) -> Finding:
    if _named(options, "rootless"):
        return Finding("user namespace", "ok", "the engine is rootless")
    if _named(options, "userns"):
        return Finding("user namespace", "ok", "userns-remap is on")
    return Finding(
        "user namespace",
        "weak",
        "root in a container would be root on the host (our containers never run as root)",
        "run the engine rootless, or set userns-remap in its configuration",
    )


def _storage(info: Mapping[str, Any]) -> Finding:
    driver = str(info.get("Driver", "unknown"))
    if driver == "vfs":
        return Finding("storage", "weak", "vfs copies the image for every container", "use overlay2")
    return Finding("storage", "ok", driver)


def _runtimes(info: Mapping[str, Any], version: Mapping[str, Any]) -> Finding:
    names = sorted(info.get("Runtimes") or ())
    if is_podman(version):  # it lists every known runtime, installed or not
        names = [str(info.get("DefaultRuntime") or "runc")]
    strong = [name for name in names if "runsc" in name]
    if strong:
        return Finding("runtimes", "ok", f"{', '.join(strong)} puts gVisor's kernel between agent and host, if chosen")
    detail = f"{', '.join(names) or 'runc'}: containers share the host's kernel"
    return Finding("runtimes", "ok", detail, "install gVisor (runsc) for untrusted agents")
