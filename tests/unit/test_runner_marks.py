"""Marks: a child inherits its mark, and nothing without the key changes it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

MARKING = """
import ctypes, json, os, resource, subprocess, sys
from sandboxd.runner.inside.marks import Marks, RLIMIT_LOCKS, mark_of

marks = Marks()
first = marks.put_on_next_child()
child = subprocess.run([sys.executable, "-c", sys.argv[1]], capture_output=True, text=True, check=True)
second = marks.put_on_next_child()
own = mark_of(os.getpid())
print(json.dumps([marks.is_sealed, first, second, own, json.loads(child.stdout)]))
"""
TAMPERING = """
import ctypes, json, os, resource

libc = ctypes.CDLL(None, use_errno=True)
machine = os.uname().machine
prlimit64, setrlimit = {"x86_64": (302, 160), "aarch64": (261, 164)}[machine]
value = (ctypes.c_uint64 * 2)(7, 7)
long = ctypes.c_long
changed = []
for number, arguments in (
    (prlimit64, (0, 10, value, None)),
    (prlimit64, (os.getpid(), 10, value, None)),
    (prlimit64, (0, 10 | 1 << 32, value, None)),
    (prlimit64, (0, 10, value, None, long(0), long(0))),
    (prlimit64, (0, 10, value, None, long(-1), long(-1))),
    (setrlimit, (10, value)),
    (setrlimit, (10 | 1 << 32, value)),
):
    padded = [long(part) if isinstance(part, int) else part for part in arguments]
    changed.append(libc.syscall(long(number), *padded) == 0)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # other limits are the process's own
print(json.dumps([resource.getrlimit(10)[0], any(changed), resource.getrlimit(resource.RLIMIT_NOFILE)[0]]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits and filters of Linux")
def test_a_child_inherits_the_mark_and_cannot_change_it() -> None:
    done = subprocess.run([sys.executable, "-c", MARKING, TAMPERING], capture_output=True, text=True, check=True)
    is_sealed, first, second, own, (carried, has_changed, files) = json.loads(done.stdout)
    assert is_sealed
    assert second > first
    assert own == second
    assert (carried, has_changed, files) == (first, False, 64)
