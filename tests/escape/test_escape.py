"""Nothing gets out: every probe fails inside a sandbox, and the same probes succeed where nothing holds them."""

from __future__ import annotations

import pytest

from tests.escape.conftest import Report, probe_sandbox

pytestmark = pytest.mark.engine


def test_every_door_of_a_sandbox_is_shut(probe_report: Report) -> None:
    assert {name: outcome["detail"] for name, outcome in probe_report.items() if not outcome["ok"]} == {}


def test_every_door_of_a_bubblewrap_sandbox_is_shut_too() -> None:
    report = probe_sandbox("bubblewrap", "host")
    assert {name: outcome["detail"] for name, outcome in report.items() if not outcome["ok"]} == {}


def test_enough_doors_are_tried(probe_report: Report) -> None:
    assert len(probe_report) >= 45


def test_probes_can_fail_in_a_weak_container(weak_report: Report, probe_report: Report) -> None:
    assert weak_report.keys() == probe_report.keys()
    opened = {
        name for name, outcome in weak_report.items() if not outcome["ok"] and not outcome["detail"].startswith("broke")
    }
    assert len(opened) >= 20
    # One of every kind, so that no room of probes is blind.
    assert opened >= {
        "no capabilities in any set",
        "no new privileges",
        "seccomp filter is on",
        "not root",
        "call mount is refused",
        "call io_uring_setup is refused",
        "unshare of a user namespace is refused",
        "clone into a mount namespace is refused",
        "packet socket is refused",
        "root filesystem is read-only",
        "memo: open for writing is refused",
        "memo: rename is refused",
        "memo: remount is refused",
        "only our own processes are visible",
        "/proc/1/environ is unreadable",
        "PID 1 cannot be traced",
        "no interface but lo",
        "limits of PID 1 are out of reach",
        "processors of PID 1 and its threads are out of reach",
        "scheduling of PID 1 is out of reach",
        "priority of all processes of this user is out of reach",
        "disk priority of all processes of this user is out of reach",
        "the mark of a call cannot be changed",
        "no engine socket",
        "no secret and no name from outside is in sight",
        "processes are limited",
        "memory is limited",
        "32-bit system calls are refused",
    }
    assert [name for name, outcome in weak_report.items() if outcome["detail"].startswith("broke")] == []
