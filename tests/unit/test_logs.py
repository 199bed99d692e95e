"""A logging failure never fails the work that is logged."""

from __future__ import annotations

import subprocess
import sys

_LOGS_TWICE = """
import structlog
from sandboxd.daemon.process import logs
logs.configure("info")
for _ in range(2):
    structlog.get_logger().warning("the disk is full")
print("still here")
"""


def test_a_log_on_a_full_disk_does_not_end_the_daemon() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", _LOGS_TWICE], stdout=subprocess.PIPE, stderr=full, text=True, check=False, timeout=60
        )
    assert done.stdout == "still here\n"
