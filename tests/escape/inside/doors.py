"""How probes try to escape: raw system calls, attempts in a child, and the list of every probe. Standard library
only."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import signal
from collections.abc import Callable

OPEN_FDS = sorted(int(name) for name in os.listdir("/proc/self/fd"))
LIBC = ctypes.CDLL(None, use_errno=True)
IS_X86 = platform.machine() == "x86_64"
REFUSALS = (errno.EPERM, errno.ENOSYS, errno.EACCES)
# Whether the door is shut, and what was seen.
Outcome = tuple[bool, str]
Probe = Callable[[], Outcome]
PROBES: dict[str, Probe] = {}


def probe(name: str) -> Callable[[Probe], Probe]:
    def register(function: Probe) -> Probe:
        assert name not in PROBES, name
        PROBES[name] = function
        return function

    return register


def raw(number: int, *arguments: int) -> int:
    """Make a system call; return its result, or its errno as a negative number."""
    ctypes.set_errno(0)
    padded = [ctypes.c_long(value) for value in (*arguments, *[0] * (6 - len(arguments)))]
    result: int = LIBC.syscall(ctypes.c_long(number), *padded)
    return -ctypes.get_errno() if result == -1 else result


def named(result: int) -> str:
    return errno.errorcode.get(-result, str(result)) if result < 0 else f"returned {result}"


def in_child(function: Callable[[], int | None]) -> tuple[int | None, int | None]:
    """Run in a forked child; return (exit code or None, signal or None). The code is an errno, or 0 for success."""
    pid = os.fork()
    if pid == 0:
        try:
            code = function() or 0
        except OSError as error:
            code = error.errno or 255
        except BaseException:  # noqa: BLE001 - a forked child must never return into the caller
            code = 255
        os._exit(abs(code) & 0xFF)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return None, os.WTERMSIG(status)
    return os.WEXITSTATUS(status), None


def refused_in_child(function: Callable[[], int | None]) -> Outcome:
    code, killed = in_child(function)
    if killed is not None:
        return True, signal.Signals(killed).name
    return code in REFUSALS, errno.errorcode.get(code or 0, f"exit {code}")


def refused(action: Callable[[], object], *expected: int) -> Outcome:
    """Check that the action raises OSError, with one of the expected errors if any are given."""
    try:
        action()
    except OSError as error:
        return not expected or error.errno in expected, errno.errorcode.get(error.errno or 0, str(error))
    return False, "it worked"


def read_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(4_000_000).decode("utf-8", "replace")
    except OSError:
        return ""


def status_field(name: str) -> str:
    found = re.search(rf"^{name}:\s*(.*)$", read_text("/proc/self/status"), re.M)
    assert found is not None, name
    return found.group(1)


def try_call(number: int, arguments: tuple[int, ...]) -> Outcome:
    if number < 0:
        return True, "this machine has no such call"
    result = raw(number, *arguments)
    return -result in REFUSALS, named(result)


def sees_host() -> bool:
    """Return whether kernel threads are visible: then all other processes are the host's and must not be touched."""
    return "kthreadd" in read_text("/proc/2/comm")
