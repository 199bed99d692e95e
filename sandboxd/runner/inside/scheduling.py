"""How the kernel schedules the runner: in short turns, so that it answers soon beside neighbours that never rest.

A task that asks for short turns gets them early; in sum it gets no more than others. What the runner starts has the
kernel's own default again. A kernel that does not know of this (before 6.12) ignores it.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_TURN_NS = 100_000
# size, policy, flags, nice, priority, runtime, deadline, period, the least and the most utilisation
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")
_RESET_ON_FORK = 1


def ask_for_short_turns(libc: ctypes.CDLL) -> None:
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is not None:
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, 0, 0, _TURN_NS, 0, 0, 0, 0)
        libc.syscall(number, 0, attributes, 0)  # refused or not: the runner works either way
