"""How the kernel schedules what is in the container: in short turns, so that nobody waits long for a busy neighbour.

A task that takes short turns gets the processor early; in sum it gets no more and no less than others. The runner asks,
and what it starts inherits it. A kernel that does not know of this (before 6.12) ignores it.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_TURN_NS = 500_000
# size, policy, flags, nice, priority, runtime, deadline, period, the least and the most utilisation
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")


def take_short_turns(libc: ctypes.CDLL) -> None:
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is not None:
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, 0, 0, _TURN_NS, 0, 0, 0, 0)
        libc.syscall(number, 0, attributes, 0)  # refused or not: the runner works either way
