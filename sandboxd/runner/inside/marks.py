"""Marks: numbers that show which call a process belongs to. Descendants inherit a mark and cannot change it.

The mark is the soft limit RLIMIT_LOCKS, which Linux has not enforced since 2.4. The runner sets its own limit before
each spawn, so a child carries the mark from its first instruction. A seccomp filter over the runner and everything it
starts refuses to change this limit unless the call carries a random key in two registers the kernel ignores. gVisor
does not let this limit be set; there the mark is RLIMIT_RSS, which neither kernel enforces.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct

RLIMIT_LOCKS = 10
RLIMIT_RSS = resource.RLIMIT_RSS
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_ALLOW, _REFUSE = 0x7FFF_0000, 0x0005_0001  # the second one returns EPERM
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_X32 = 0x4000_0000
# machine: (its name for seccomp, setrlimit, prlimit64)
_CALLS = {"x86_64": (0xC000_003E, 160, 302), "aarch64": (0xC000_00B7, 164, 261)}


def _find_limit() -> int:
    """Return the limit that carries marks: one that this kernel lets us set and does not enforce."""
    try:
        resource.setrlimit(RLIMIT_LOCKS, resource.getrlimit(RLIMIT_LOCKS))
    except (OSError, ValueError):
        return RLIMIT_RSS
    return RLIMIT_LOCKS


MARK_LIMIT = _find_limit()


def read_marks_as_a_marked_process() -> None:
    """Use the limit that carries this process's own mark: only the runner can find out by setting it."""
    global MARK_LIMIT
    if resource.getrlimit(RLIMIT_LOCKS)[0] != resource.RLIM_INFINITY:
        MARK_LIMIT = RLIMIT_LOCKS


def mark_of(pid: int) -> int | None:
    """Return the mark of a process, or None if it no longer exists."""
    try:
        return resource.prlimit(pid, MARK_LIMIT)[0]
    except (ProcessLookupError, PermissionError):
        return None


class Marks:
    """Allocates marks and sets them."""

    def __init__(self) -> None:
        self._last = 0
        self._hard = resource.getrlimit(MARK_LIMIT)[1] % 2**64
        self._limit = (ctypes.c_uint64 * 2)(0, self._hard)
        self._key = os.urandom(16)
        self._libc = ctypes.CDLL(None, use_errno=True)
        machine = _CALLS.get(os.uname().machine)
        self.is_sealed = machine is not None and self._seal(*machine)
        """Whether the kernel guards the marks. If not, a process can escape its call by changing its own limit."""
        number = ctypes.c_long(machine[2] if machine else 0)
        key = [ctypes.c_uint64(part) for part in struct.unpack("<QQ", self._key)]
        self._arguments = (number, 0, MARK_LIMIT, ctypes.byref(self._limit), None, *key)

    def put_on_next_child(self) -> int:
        """Mark whatever this process starts next, and return the mark."""
        # the image or engine may have lowered this limit: marks then wrap around, to numbers long unused
        self._last = mark = self._last % self._hard + 1
        if self.is_sealed:
            self._limit[0] = mark
            if self._libc.syscall(*self._arguments) != 0:
                raise OSError(ctypes.get_errno(), "cannot mark a process")
        else:
            resource.setrlimit(MARK_LIMIT, (mark, resource.getrlimit(MARK_LIMIT)[1]))
        return mark

    def _seal(self, architecture: int, setrlimit: int, prlimit64: int) -> bool:
        program = make_filter(architecture, setrlimit, prlimit64, self._key)
        instructions = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(instructions))
        if self._libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
            return False
        return int(self._libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0)) == 0


def make_filter(architecture: int, setrlimit: int, prlimit64: int, key: bytes) -> bytes:
    """Return a BPF program that lets the limit with the mark be read by all and set only together with the key."""
    allow, refuse = object(), object()
    program: list[tuple[int, int, object, object]] = [
        (_LOAD, _ARCHITECTURE_AT, None, None),
        (_IF_EQUAL, architecture, None, refuse),
        (_LOAD, _NUMBER_AT, None, None),
        (_IF_AT_LEAST, _X32, refuse, None),
        (_IF_EQUAL, prlimit64, 4, None),  # skips the next four
        (_IF_EQUAL, setrlimit, None, allow),
        (_LOAD, _argument_at(0), None, None),
        (_IF_EQUAL, MARK_LIMIT, refuse, allow),
        (_RETURN, _ALLOW, None, None),
        (_LOAD, _argument_at(1), None, None),
        (_IF_EQUAL, MARK_LIMIT, None, allow),
        (_LOAD, _argument_at(2), None, None),  # the new limit: without one the call only reads
        (_IF_EQUAL, 0, None, 2),
        (_LOAD, _argument_at(2) + 4, None, None),
        (_IF_EQUAL, 0, allow, None),
    ]
    for index, word in enumerate(struct.unpack("<4I", key)):  # prlimit64 has four arguments: these are the last two
        program += [(_LOAD, _argument_at(4) + 4 * index, None, None), (_IF_EQUAL, word, None, refuse)]
    program += [(_RETURN, _ALLOW, None, None), (_RETURN, _REFUSE, None, None)]
    places = {allow: len(program) - 2, refuse: len(program) - 1}

    def distance(position: int, target: object) -> int:
        if target is None:
            return 0
        return target if isinstance(target, int) else places[target] - position - 1

    return b"".join(
        struct.pack("=HBBI", code, distance(position, if_true), distance(position, if_false), value)
        for position, (code, value, if_true, if_false) in enumerate(program)
    )


def _argument_at(index: int) -> int:
    """Return the offset of an argument's lower half; the upper half follows on the machines listed here."""
    return 16 + 8 * index
