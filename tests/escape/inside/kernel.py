"""Probes of the kernel: system calls, namespaces, socket types, 32-bit calls, devices."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import signal
import socket
import termios

from doors import IS_X86, LIBC, PROBES, Outcome, probe, raw, refused, refused_in_child, try_call

# name: (x86_64, aarch64, arguments that are checked only after permissions). -1: the machine does not have the call.
BAD = 0x7FFF_FFFF
CALLS = {
    "bpf": (321, 280, (BAD, 0, 0)),
    "perf_event_open": (298, 241, (0, 0, -1, -1, 0)),
    "userfaultfd": (323, 282, (1 | 0x8000,)),
    "io_uring_setup": (425, 425, (0, 0)),
    "io_uring_enter": (426, 426, (-1, 0, 0, BAD, 0, 0)),
    "io_uring_register": (427, 427, (-1, BAD, 0, 0)),
    "keyctl": (250, 219, (BAD,)),
    "add_key": (248, 217, (0, 0, 0, 0, 0)),
    "request_key": (249, 218, (0, 0, 0, 0)),
    "init_module": (175, 105, (0, 0, 0)),
    "finit_module": (313, 273, (-1, 0, BAD)),
    "delete_module": (176, 106, (0, 0)),
    "kexec_load": (246, 104, (0, 0, 0, BAD)),
    "kexec_file_load": (320, 294, (-1, -1, 0, 0, BAD)),
    "mount": (165, 40, (0, 0, 0, 0, 0)),
    "umount2": (166, 39, (0, BAD)),
    "pivot_root": (155, 41, (0, 0)),
    "fsopen": (430, 430, (0, BAD)),
    "fsmount": (432, 432, (-1, BAD, 0)),
    "fspick": (433, 433, (-1, 0, BAD)),
    "open_tree": (428, 428, (-1, 0, BAD)),
    "move_mount": (429, 429, (-1, 0, -1, 0, BAD)),
    "mount_setattr": (442, 442, (-1, 0, BAD, 0, 0)),
    "setns": (308, 268, (-1, 0)),
    "clone3": (435, 435, (0, 0)),
    "open_by_handle_at": (304, 265, (-1, 0, 0)),
    "name_to_handle_at": (303, 264, (-1, 0, 0, 0, BAD)),
    "process_vm_readv": (310, 270, (0, 0, 0, 0, 0, BAD)),
    "process_vm_writev": (311, 271, (0, 0, 0, 0, 0, BAD)),
    "pidfd_getfd": (438, 438, (-1, -1, BAD)),
    "kcmp": (312, 272, (0, 0, BAD, 0, 0)),
    "lookup_dcookie": (212, 18, (0, 0, 0)),
    "swapon": (167, 224, (0, BAD)),
    "swapoff": (168, 225, (0,)),
    "reboot": (169, 142, (0, 0, 0, 0)),
    "acct": (163, 89, (1,)),
    "quotactl": (179, 60, (BAD, 0, 0, 0)),
    "clock_settime": (227, 112, (BAD, 0)),
    "sethostname": (170, 161, (0, BAD)),
    "setdomainname": (171, 162, (0, BAD)),
    "syslog": (103, 116, (BAD, 0, 0)),
    "fanotify_init": (300, 262, (BAD, 0)),
    "iopl": (172, -1, (BAD,)),
    "modify_ldt": (154, -1, (BAD, 0, 0)),
}


for _name, (_x86, _arm, _arguments) in CALLS.items():
    _number = _x86 if IS_X86 else _arm
    PROBES[f"call {_name} is refused"] = lambda number=_number, arguments=_arguments: try_call(number, arguments)

NAMESPACES = {"mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000}
NAMESPACES.update({"pid": 0x20000000, "network": 0x40000000})


def clone_into(flag: int) -> Outcome:
    def attempt() -> int:
        result = raw(56 if IS_X86 else 220, flag | signal.SIGCHLD)
        if result == 0:
            os._exit(0)
        return 0 if result > 0 else result

    return refused_in_child(attempt)


for _name, _flag in NAMESPACES.items():
    _unshare = 272 if IS_X86 else 97
    PROBES[f"unshare of a {_name} namespace is refused"] = lambda f=_flag, n=_unshare: refused_in_child(
        lambda: raw(n, f)
    )
    PROBES[f"clone into a {_name} namespace is refused"] = lambda f=_flag: clone_into(f)

SOCKETS = {
    "packet": (17, socket.SOCK_RAW, 0),
    "raw ip": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "raw ipv6": (socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6),
    "alg": (38, socket.SOCK_SEQPACKET, 0),
    "vsock": (40, socket.SOCK_STREAM, 0),
    "xdp": (44, socket.SOCK_RAW, 0),
    "pfkey": (15, socket.SOCK_RAW, 2),
    "bluetooth": (31, socket.SOCK_RAW, 1),
    "sctp": (socket.AF_INET, socket.SOCK_STREAM, 132),
    "netfilter netlink": (socket.AF_NETLINK, socket.SOCK_RAW, 12),
    "audit netlink": (socket.AF_NETLINK, socket.SOCK_RAW, 9),
    "uevent netlink": (socket.AF_NETLINK, socket.SOCK_RAW, 15),
}
for _name, _kind in SOCKETS.items():
    PROBES[f"{_name} socket is refused"] = lambda kind=_kind: refused(lambda: socket.socket(*kind).close())


@probe("lowering the own oom score is refused")
def oom_score() -> Outcome:
    def attempt() -> None:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("-900")

    return refused_in_child(attempt)


PROBES["raising the own priority is refused"] = lambda: refused_in_child(lambda: os.setpriority(os.PRIO_PROCESS, 0, -5))
PROBES["executable personality is refused"] = lambda: refused_in_child(lambda: LIBC.personality(0x400000) and 1)


@probe("pushing input into a terminal is refused")
def push_input() -> Outcome:
    master, slave = os.openpty()

    def attempt() -> None:
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        fcntl.ioctl(slave, termios.TIOCSTI, b"x")

    outcome = refused_in_child(attempt)
    os.close(master)
    os.close(slave)
    return outcome


@probe("32-bit system calls are refused")
def call_32_bit() -> Outcome:
    if not IS_X86:
        return True, "not this machine"

    def attempt() -> int:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, getpid; int 0x80; ret
        code = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
        return 0 if code() == os.getpid() else errno.EPERM

    return refused_in_child(attempt)


PROBES["x32 system calls are refused"] = lambda: (
    refused_in_child(lambda: min(raw(0x4000_0000 | 39), 0)) if IS_X86 else (True, "not this machine")
)
