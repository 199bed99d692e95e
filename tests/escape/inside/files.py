"""Probes of files: the read-only root, the settings under /proc and /sys, the mirror, and the writable places."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable

from doors import LIBC, PROBES, Outcome, probe, read_text, refused, refused_in_child

MEMO = "/workspace/memo"


def make_device(kind: int) -> Outcome:
    def attempt() -> None:
        path = f"/dev/shm/probe-{os.getpid()}"
        os.mknod(path, kind | 0o600, os.makedev(1, 3))
        os.unlink(path)

    return refused(attempt, errno.EPERM)


PROBES["making a character device is refused"] = lambda: make_device(stat.S_IFCHR)
PROBES["making a block device is refused"] = lambda: make_device(stat.S_IFBLK)


def write_file(path: str) -> Outcome:
    def attempt() -> None:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.unlink(path)

    return refused(attempt)


for _place in ("/", "/etc", "/usr/bin", "/var", "/root", "/opt", "/home", "/sys", "/proc"):
    PROBES[f"creating a file in {_place} is refused"] = lambda place=_place: write_file(f"{place}/probe-file")
PROBES["root filesystem is read-only"] = lambda: (bool(os.statvfs("/").f_flag & os.ST_RDONLY), "")

KNOBS = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/kernel/hostname",
    "/proc/sysrq-trigger",
    "/proc/irq/default_smp_affinity",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/mm/ksm/run",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    "/sys/fs/cgroup/memory/cgroup.procs",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/memory.max",
    "/sys/power/state",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/1/oom_score_adj",
)
for _knob in KNOBS:  # opened, never written
    PROBES[f"writing {_knob} is refused"] = lambda knob=_knob: refused(lambda: os.close(os.open(knob, os.O_WRONLY)))
for _secret in ("/proc/kcore", "/dev/mem", "/dev/kmsg", "/dev/kvm", "/dev/fuse", "/dev/net/tun"):
    PROBES[f"opening {_secret} is refused"] = lambda path=_secret: (not read_first(path), "")
for _hidden in ("/proc/cmdline", "/proc/keys", "/proc/timer_list", "/proc/interrupts"):
    PROBES[f"{_hidden} is empty"] = lambda path=_hidden: (not read_text(path).strip(), "")


def read_first(path: str) -> bool:
    """Return whether something can be read there; a masked file is the null device."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        found = os.fstat(descriptor)
        is_device = stat.S_ISCHR(found.st_mode) and found.st_rdev != os.makedev(1, 3)
        return is_device or bool(os.read(descriptor, 1))
    finally:
        os.close(descriptor)


@probe("no block devices and no unknown devices in /dev")
def devices() -> Outcome:
    usual = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console")
    found = []
    for entry in os.scandir("/dev"):
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and entry.name not in usual):
            found.append(entry.path)
    return not found, " ".join(found[:5])


def memo_file() -> str:
    return next(entry.path for entry in os.scandir(MEMO) if entry.is_file())


def memo_open(flags: int) -> None:
    os.close(os.open(memo_file(), flags))


def through_fd() -> None:
    descriptor = os.open(memo_file(), os.O_RDONLY)
    try:
        os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY))
    finally:
        os.close(descriptor)


def keeping_content(action: Callable[[str], None]) -> Callable[[], None]:
    """Return an attempt that runs the action and, where it works, restores the file."""

    def attempt() -> None:
        path = memo_file()
        with open(path, "rb") as file:
            content = file.read()
        action(path)
        with open(path, "wb") as file:
            file.write(content)

    return attempt


def rename_over(path: str) -> None:
    source = "/workspace/probe-source"
    with open(source, "w"):
        pass
    try:
        os.rename(source, path)
    finally:
        if os.path.exists(source):
            os.unlink(source)


def rename_inside() -> None:
    path = memo_file()
    os.rename(path, f"{MEMO}/probe")
    os.rename(f"{MEMO}/probe", path)


def link_out() -> None:
    os.link(memo_file(), "/workspace/probe-link")
    os.unlink("/workspace/probe-link")


def mount_memo(flags: int) -> None:
    result = LIBC.mount(MEMO.encode(), MEMO.encode(), None, ctypes.c_ulong(flags), None)
    if result:
        raise OSError(ctypes.get_errno(), "mount")
    if flags == 4096:
        LIBC.umount2(MEMO.encode(), 2)


def there_and_back(make: Callable[[str], None], undo: Callable[[str], None]) -> Callable[[], None]:
    def attempt() -> None:
        make(f"{MEMO}/probe")
        undo(f"{MEMO}/probe")

    return attempt


MEMO_WRITES: dict[str, Callable[[], object]] = {
    "open for writing": lambda: memo_open(os.O_WRONLY),
    "open for appending": lambda: memo_open(os.O_WRONLY | os.O_APPEND),
    "open for reading and writing": lambda: memo_open(os.O_RDWR),
    "truncate": lambda: os.truncate(memo_file(), os.stat(memo_file()).st_size),
    "create a file": there_and_back(lambda path: open(path, "x").close(), os.unlink),
    "make a directory": there_and_back(os.mkdir, os.rmdir),
    "make a fifo": there_and_back(os.mkfifo, os.unlink),
    "symlink": there_and_back(lambda path: os.symlink("/etc/passwd", path), os.unlink),
    "hard link inside": there_and_back(lambda path: os.link(memo_file(), path), os.unlink),
    "hard link out": link_out,
    "rename": rename_inside,
    "rename over": keeping_content(rename_over),
    "rename the directory": lambda: (os.rename(MEMO, "/workspace/probe-m"), os.rename("/workspace/probe-m", MEMO)),
    "remove the directory": lambda: os.rmdir(MEMO),
    "unlink": keeping_content(os.unlink),
    "chmod": lambda: os.chmod(memo_file(), stat.S_IMODE(os.stat(memo_file()).st_mode)),
    "chown": lambda: os.chown(memo_file(), os.getuid(), os.getgid()),
    "set times": lambda: os.utime(memo_file()),
    "set an attribute": lambda: os.setxattr(memo_file(), "user.probe", b"x"),
    "reopen through /proc": through_fd,
    "remount": lambda: mount_memo(4096 | 32),
    "mount over": lambda: mount_memo(4096),
}
for _name, _action in MEMO_WRITES.items():
    PROBES[f"memo: {_name} is refused"] = lambda action=_action: refused(action)


@probe("/tmp is noexec, nosuid, nodev and small")
def temporary() -> Outcome:
    found = os.statvfs("/tmp")
    wanted = os.ST_NOEXEC | os.ST_NOSUID | os.ST_NODEV
    size = found.f_blocks * found.f_frsize
    return found.f_flag & wanted == wanted and 0 < size <= 1 << 30, f"flags {found.f_flag:#x} size {size}"


@probe("/var/tmp is nosuid, nodev and within the workspace's quota")
def lasting_temporary() -> Outcome:
    found = os.statvfs("/var/tmp")
    wanted = os.ST_NOSUID | os.ST_NODEV
    is_same = os.stat("/var/tmp").st_dev == os.stat("/workspace").st_dev
    return found.f_flag & wanted == wanted and is_same, f"flags {found.f_flag:#x} same volume {is_same}"


@probe("/var/tmp cannot be replaced, nor reached through the mirror that hides it")
def hidden_temporary() -> Outcome:
    seen = [entry.path for place in ("/workspace", MEMO, "/var") for entry in os.scandir(place) if entry.name == "tmp"]
    moved = refused(lambda: (os.rename("/var/tmp", "/var/probe"), os.rename("/var/probe", "/var/tmp")))
    gone = refused(lambda: (os.rmdir("/var/tmp"), os.mkdir("/var/tmp", 0o1777)))
    return seen == ["/var/tmp"] and moved[0] and gone[0], f"seen {seen} {moved[1]} {gone[1]}"


@probe("/dev/shm is noexec and small")
def shared_memory() -> Outcome:
    found = os.statvfs("/dev/shm")
    size = found.f_blocks * found.f_frsize
    return bool(found.f_flag & os.ST_NOEXEC) and 0 < size <= 1 << 30, f"flags {found.f_flag:#x} size {size}"


@probe("a program in /tmp does not run")
def run_from_tmp() -> Outcome:
    path = f"/tmp/probe-{os.getpid()}"
    with open(path, "w") as file:
        file.write("#!/bin/sh\nexit 0\n")
    os.chmod(path, 0o755)
    outcome = refused_in_child(lambda: os.execv(path, [path]))
    os.unlink(path)
    return outcome
