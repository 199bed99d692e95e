"""Scheduling in the container: short time slices, so that no process waits long for a busy neighbour, and ids of
threads that only the runner has, so that no process reschedules it.

A task with a short slice is scheduled earlier, but gets no more processor time in total. The runner requests
it, and its children inherit it. A kernel before 6.12 ignores the request.
"""

from __future__ import annotations

import os
import struct
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes

OWN_TASKS = 16
"""The seccomp filter refuses to schedule threads with ids below this number, which are the runner's. A power of two."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_TURN_NS = 500_000
# size, policy, flags, nice, priority, runtime, deadline, period, the minimum and maximum utilisation
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")


def take_short_turns(libc: ctypes.CDLL) -> None:
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is not None:
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, 0, 0, 0, _TURN_NS, 0, 0, 0, 0)
        libc.syscall(number, 0, attributes, 0)  # the result is ignored, because the runner works either way


def use_up_own_ids() -> None:
    """Let the next process or thread have an id that the filter allows: its own threads are scheduled by id too.

    Called once all of the runner's threads run.
    """
    used = 0
    while used < OWN_TASKS - 1:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        used = thread.native_id or OWN_TASKS
