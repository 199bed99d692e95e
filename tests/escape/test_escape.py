"""Nothing escapes: every probe fails inside a sandbox, and the same probes succeed in a container without hardening."""

from __future__ import annotations

from contextlib import suppress

import pytest

from sandboxd.client import Client
from sandboxd.errors import FileNotFound, InvalidRequest, IsADirectory, OutsideSandbox, PermissionDenied
from tests.engines import Podman
from tests.escape.conftest import Report, probe_sandbox
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine


def test_every_probe_fails_in_a_sandbox(probe_report: Report) -> None:
    assert {name: outcome["detail"] for name, outcome in probe_report.items() if not outcome["ok"]} == {}


def test_every_probe_fails_in_a_bubblewrap_sandbox() -> None:
    report = probe_sandbox("bubblewrap", "host")
    assert {name: outcome["detail"] for name, outcome in report.items() if not outcome["ok"]} == {}


HIDDEN = (
    *("/proc/1/environ", "/proc/1/mem", "/proc/1/maps", "/proc/1/status", "/proc/1/cmdline", "/proc/1/fd/0"),
    *("/proc/1/root/etc/passwd", "/proc/1/cwd", "/proc/1/task/1/status", "/proc/self/environ", "/proc/self/status"),
    *("/proc/self/exe", "/proc/thread-self/status", "/proc/version", "/proc/mounts", "/proc/sys/kernel/hostname"),
    *("/sys/kernel/mm/transparent_hugepage/enabled", "/sys/fs/cgroup/cgroup.procs"),
    *("/dev/null", "/dev/zero", "/dev/urandom", "/dev/tty", "/dev/fd/0", "/dev/stdin", "/dev/shm/mine"),
    *("/run/sandboxd/secret", "/run/sandboxd/socket", "/run/sandboxd-runner/server.py", "/var/run/sandboxd/secret"),
    *("/etc", "/", "/workspace/memo/tmp"),
)
REFUSALS = (OutsideSandbox, FileNotFound, IsADirectory, PermissionDenied, InvalidRequest)


@pytest.mark.parametrize("engine", ["docker", "bubblewrap"])
def test_the_runner_reads_only_public_files_and_the_agent_s_own(
    engine_socket: str, agent_image: str, engine: str
) -> None:
    daemon = RunningDaemon(engine=engine)
    try:
        with daemon.start().client() as client:
            client.ensure_sandbox("s", user="u")
            (run_dir,) = (daemon.data / "run").iterdir()
            (run_dir / "secret").write_text("as if it were still there, and open")
            run_dir.chmod(0o755)
            (run_dir / "secret").chmod(0o644)
            assert "as if" in client.exec("s", "cat /run/sandboxd/secret; echo mine > /dev/shm/mine").stdout
            got = {path: found for path in HIDDEN if (found := read_by_every_way(client, path))}
            assert got == {}
            assert read_by_every_way(client, "/etc/passwd") != []  # the same ways work for a public file
    finally:
        daemon.stop()


def read_by_every_way(client: Client, path: str) -> list[str]:
    """Return what the file calls return for a path: by its name, through a link, and through a link to its
    directory."""
    parent, _, name = path.rpartition("/")
    client.exec("s", f"rm -rf link chain dir; ln -s {path} link; ln -s link chain; ln -s {parent or '/'} dir")
    found = []
    for way in (path, "/workspace/link", "/workspace/chain", f"/workspace/dir/{name}"):
        with suppress(*REFUSALS):
            found.append(f"{way}: {client.read_file('s', way)[:100]!r}")
        result = client.tool("s", "Read", {"file_path": way})
        if result.ok:
            found.append(f"{way}: {result.content[:100]}")
    return found


def test_every_door_of_a_podman_sandbox_is_shut_too(podman: Podman, agent_image: str) -> None:
    report = probe_sandbox("docker", agent_image, docker_host=podman.url)
    assert {name: outcome["detail"] for name, outcome in report.items() if not outcome["ok"]} == {}


def test_enough_doors_are_tried(probe_report: Report) -> None:
    assert len(probe_report) >= 45


def test_the_probes_succeed_in_a_weak_container(weak_report: Report, probe_report: Report) -> None:
    assert weak_report.keys() == probe_report.keys()
    opened = {
        name for name, outcome in weak_report.items() if not outcome["ok"] and not outcome["detail"].startswith("broke")
    }
    assert len(opened) >= 20
    # One of every kind, so that every group is known to detect an open door.
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
        "scheduling of PID 1 and its threads is out of reach",
        "priority of all processes of this user is out of reach",
        "disk priority of all processes of this user is out of reach",
        "the mark of a call cannot be changed",
        "/var/tmp is nosuid, nodev and within the workspace's quota",
        "/var/tmp cannot be replaced, nor reached through the mirror that hides it",
        "no engine socket",
        "no secret and no name from outside is in sight",
        "processes are limited",
        "memory is limited",
        "32-bit system calls are refused",
    }
    assert [name for name, outcome in weak_report.items() if outcome["detail"].startswith("broke")] == []
