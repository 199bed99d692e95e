"""The entry program of a bubblewrap container: builds a private root for bwrap, drops privileges, becomes bwrap.

Runs as a separate program, with the standard library only. It does nothing until it has read its whole plan from
descriptor 3, so a daemon that dies before it has recorded this process starts nothing. It never outlives its exec, and
it never opens a file that a container can write.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # this program starts with every container, and importing `typing` takes milliseconds
    from typing import Any

PLAN_FD = 3
FIRST_FOREIGN_FD = 8
"""Descriptors 0 to 7 are passed deliberately; any other leaked from the process that started the daemon."""

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot {what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode()
    )
    _check(result, f"mount {kind or 'bind'} {source} on {target}")


def unshare_user(uid: int, gid: int, flags: int) -> None:
    """Enter a user namespace that maps only this user, to itself."""
    _check(_libc.unshare(flags | CLONE_NEWUSER), "make a user namespace")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def build_stage(stage: str, steps: list[list[str]]) -> None:
    """Fill a tmpfs with exactly what bwrap and the container may see."""
    _mount("none", "/", "", MS_REC | MS_PRIVATE)
    _mount("stage", stage, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=16m")
    for verb, first, path in steps:
        target = f"{stage}/{path}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        match verb:
            case "bind" | "tree":
                os.makedirs(target, exist_ok=True)
                _mount(first, target, "", MS_BIND | (MS_REC if verb == "tree" else 0))
            case "tmpfs" | "exec_tmpfs":
                os.makedirs(target, exist_ok=True)
                flags = MS_NOSUID | MS_NODEV | (MS_NOEXEC if verb == "tmpfs" else 0)
                _mount("tmpfs", target, "tmpfs", flags, first)
            case "dir":
                os.makedirs(target, exist_ok=True)
            case "link":
                os.symlink(first, target)
            case "text":
                with open(target, "w") as file:
                    file.write(first)
            case "copy":
                with open(first, "rb") as reader, open(target, "wb") as writer:
                    writer.write(reader.read())
            case _:
                raise ValueError(f"cannot build the stage: unknown step {verb}")


def enter_stage(stage: str) -> None:
    """Make the stage the root and unmount everything else.

    bwrap's monitor keeps this mount namespace as long as the container lives. If it kept the host's mounts, one
    container would keep every other container's workspace mounted.
    """
    os.chdir(stage)
    _check(_libc.pivot_root(b".", b"."), "enter the stage")
    _check(_libc.umount2(b".", MNT_DETACH), "leave the host's root")
    os.chdir("/")


def drop_user(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def run(plan: dict[str, Any]) -> None:
    os.umask(0o022)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(plan["oom_score_adj"]))
    uid, gid = plan["uid"], plan["gid"]
    is_root = os.geteuid() == 0
    if is_root:
        _check(_libc.unshare(CLONE_NEWNS), "make a mount namespace")
    else:
        unshare_user(uid, gid, CLONE_NEWNS)
    build_stage(plan["stage"], plan["steps"])
    enter_stage(plan["stage"])
    if is_root:
        drop_user(uid, gid)
        if plan["counts_processes"]:
            # The kernel counts RLIMIT_NPROC per user and user namespace. In its own namespace the count is this
            # container's; in the host's all containers of this user would share it.
            unshare_user(uid, gid, 0)
    for number, wanted in plan["rlimits"]:
        _, hard = resource.getrlimit(number)
        bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(number, (bound, bound))
    os.execve(plan["argv"][0], plan["argv"], {})  # noqa: S606 - deliberately without a shell


def main() -> None:
    os.closerange(FIRST_FOREIGN_FD, os.sysconf("SC_OPEN_MAX"))
    with os.fdopen(PLAN_FD, "rb") as file:
        text = file.read()
    if not text.endswith(b"\n"):
        sys.exit("cannot enter the container: the daemon died before it sent the plan")
    try:
        run(json.loads(text))
    except OSError as error:
        sys.exit(error.strerror if str(error.strerror).startswith("cannot") else f"cannot enter the container: {error}")


if __name__ == "__main__":
    main()
