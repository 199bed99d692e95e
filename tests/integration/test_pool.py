"""The warm pool with real containers: claims, isolation between owners, and recovery."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection

import pytest

from sandboxd.client import Client, DaemonUnreachable, SandboxView
from sandboxd.errors import HostFull
from tests.running import RunningDaemon, docker

pytestmark = [pytest.mark.engine]

_HANG_GUARD_S = 120.0
_LATE_S = 6.0


@pytest.fixture
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    running = RunningDaemon(image=agent_image, pool=2)
    try:
        yield running.start()
    finally:
        running.stop()


def figures(daemon: RunningDaemon) -> dict[str, float]:
    with closing(HTTPConnection("daemon")) as http:
        http.sock = socket.socket(socket.AF_UNIX)
        http.sock.connect(str(daemon.socket))
        http.request("GET", "/metrics")
        lines = http.getresponse().read().decode().splitlines()
    pool = [line.split() for line in lines if line.startswith("sandboxd_pool_") and "_created" not in line]
    assert pool, lines
    return {name.removeprefix("sandboxd_pool_"): float(value) for name, value in pool}


def wait_for_ready(daemon: RunningDaemon, count: int) -> set[str]:
    """Wait until this many sandboxes can be claimed; return all containers."""
    deadline = time.monotonic() + _HANG_GUARD_S
    while figures(daemon)["ready"] != count:
        assert time.monotonic() < deadline, daemon.log.read_text()[-4000:]
        time.sleep(0.05)
    return set(daemon.containers())


def test_a_claimed_sandbox_has_its_owner_s_memory_and_environment_and_is_replaced(daemon: RunningDaemon) -> None:
    warm = wait_for_ready(daemon, 2)
    with daemon.client() as client:
        client.write_memo("s1", "NOTES.md", "# Notes of ada\n")
        sandbox = client.ensure_sandbox("s1", user="ada", env={"COLOUR": "blue"})
        assert sandbox.from_pool
        assert sandbox.container in warm
        done = client.exec("s1", "cat /workspace/memo/session/NOTES.md; echo $COLOUR; id -u; touch /workspace/mine")
        assert done.stdout == "# Notes of ada\nblue\n10001\n"
        client.write_memo("s1", "NOTES.md", "# Later\n")
        assert client.exec("s1", "cat /workspace/memo/session/NOTES.md").stdout == "# Later\n"
        assert client.get_sandbox("s1").from_pool
        now = wait_for_ready(daemon, 2)
        assert sandbox.container in now
        assert len(now) == 3
    seen = figures(daemon)
    assert (seen["hits_total"], seen["misses_total"], seen["refill_seconds_count"]) == (1, 0, 3)


def test_nothing_leaks_from_one_claim_to_the_next(daemon: RunningDaemon) -> None:
    secret = "canary-of-ada"
    with daemon.client() as client:
        containers = []
        for number, user in enumerate(["ada", "bob", "ada"]):
            wait_for_ready(daemon, 2)
            session = f"s{number}"
            if number == 0:
                client.write_memo(session, "NOTES.md", secret)
            sandbox = client.ensure_sandbox(session, user=user, env={"SECRET": secret} if number == 0 else {})
            assert sandbox.from_pool
            containers.append(sandbox.container)
            if number == 0:
                client.exec(session, f"echo {secret} | tee /workspace/f /tmp/f /dev/shm/f; sleep 1000 & disown")
                client.destroy_sandbox(session)
            else:
                look = "env; cat /proc/*/cmdline | tr '\\0' ' '; cat /proc/mounts; cat /workspace/f /tmp/f /dev/shm/f"
                assert secret not in client.exec(session, look).stdout
                assert client.exec(session, "ls /workspace /tmp").stdout == "/tmp:\n\n/workspace:\nmemo\n"
    assert len(set(containers)) == 3


def test_a_shape_without_a_warm_sandbox_starts_cold_and_is_kept_warm_after_a_second_request(
    daemon: RunningDaemon,
) -> None:
    wait_for_ready(daemon, 2)
    with daemon.client() as client:
        limits = {"memory_mb": 256}
        assert not client.ensure_sandbox("s1", user="ada", limits=limits).from_pool
        assert not client.ensure_sandbox("s2", user="ada", limits=limits).from_pool
        wait_for_ready(daemon, 3)
        sandbox = client.ensure_sandbox("s3", user="ada", limits=limits)
        assert sandbox.from_pool
        assert docker("inspect", "--format", "{{.HostConfig.Memory}}", str(sandbox.container)).strip() == str(256 << 20)


def test_a_variant_is_kept_warm_once_it_is_in_demand(daemon: RunningDaemon, interpreter_image: str) -> None:
    wait_for_ready(daemon, 2)
    with daemon.client() as client:
        for session in ("s1", "s2"):
            assert not client.ensure_sandbox(session, user="ada", image="interpreter").from_pool
        wait_for_ready(daemon, 3)
        sandbox = client.ensure_sandbox("s3", user="ada", image="interpreter")
        assert sandbox.from_pool
        assert sandbox.image == interpreter_image
        assert not client.ensure_sandbox("s3", user="ada", image="interpreter").created
        assert client.exec("s3", "python3 -c 'import ipykernel'").exit_code == 0


def test_a_warm_container_that_dies_is_replaced(daemon: RunningDaemon) -> None:
    before = wait_for_ready(daemon, 2)
    victim = before.pop()
    docker("rm", "-f", victim)
    deadline = time.monotonic() + _HANG_GUARD_S
    while victim in daemon.containers() or len(daemon.containers()) != 2 or figures(daemon)["ready"] != 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with daemon.client() as client:
        assert client.ensure_sandbox("s1", user="ada").from_pool
        assert client.exec("s1", "echo well").stdout == "well\n"


def test_warm_containers_that_do_not_answer_are_not_handed_out(daemon: RunningDaemon) -> None:
    frozen = wait_for_ready(daemon, 2)
    for container in frozen:
        docker("pause", container)
    with daemon.client() as client:
        sandbox = client.ensure_sandbox("s1", user="ada", env={"COLOUR": "blue"})
        assert not sandbox.from_pool
        assert client.exec("s1", "echo $COLOUR").stdout == "blue\n"
    deadline = time.monotonic() + _HANG_GUARD_S
    while frozen & set(daemon.containers()):  # both are replaced: they have no owner
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_late_warm_container_is_awaited_and_not_discarded(daemon: RunningDaemon) -> None:
    warm = wait_for_ready(daemon, 2)
    pids = [int(docker("inspect", "--format", "{{.State.Pid}}", container)) for container in warm]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)

    def resume() -> None:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)

    late = threading.Timer(_LATE_S, resume)
    late.start()
    with daemon.client() as client:
        sandbox = client.ensure_sandbox("s1", user="ada", env={"COLOUR": "blue"})
        assert sandbox.container in warm
        assert client.exec("s1", "echo $COLOUR").stdout == "blue\n"
    late.join()


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_a_restart_adopts_the_pool(daemon: RunningDaemon, is_killed: bool) -> None:
    warm = wait_for_ready(daemon, 2)
    if is_killed:
        daemon.kill()
    else:
        assert daemon.terminate() == 0
    daemon.start()
    assert wait_for_ready(daemon, 2) == warm
    with daemon.client() as client:
        sandbox = client.ensure_sandbox("s1", user="ada", env={"COLOUR": "blue"})
        assert sandbox.from_pool
        assert sandbox.container in warm
        assert client.exec("s1", "echo $COLOUR; ls /workspace/memo").stdout == "blue\nsession\nuser\n"


def test_a_restart_without_a_pool_or_with_another_shape_removes_the_old_pool(daemon: RunningDaemon) -> None:
    warm = wait_for_ready(daemon, 2)
    daemon.terminate()
    daemon.start(limits='{"memory_mb": 256}')
    deadline = time.monotonic() + _HANG_GUARD_S
    while warm & set(daemon.containers()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    wait_for_ready(daemon, 2)
    daemon.terminate()
    daemon.start(pool=0)
    while daemon.containers():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("point", ["claim.intent", "claim.mirror", "claim.configured"])
def test_a_killed_claim_is_finished_for_its_owner_at_the_next_start(daemon: RunningDaemon, point: str) -> None:
    wait_for_ready(daemon, 2)
    daemon.kill()
    daemon.start(failpoint=f"{point}=kill")
    warm = wait_for_ready(daemon, 2)
    with daemon.client() as client:
        client.write_memo("s1", "NOTES.md", "# Mine\n")
        with pytest.raises(DaemonUnreachable):
            client.ensure_sandbox("s1", user="ada", env={"COLOUR": "blue"})
    daemon.wait()
    daemon.start()
    with daemon.client() as client:
        sandbox = client.ensure_sandbox("s1", user="ada", env={"COLOUR": "blue"})
        assert sandbox.container in warm
        assert client.exec("s1", "cat /workspace/memo/session/NOTES.md; echo $COLOUR").stdout == "# Mine\nblue\n"
        for session in ("s2", "s3"):
            wait_for_ready(daemon, 2)
            other = client.ensure_sandbox(session, user="bob")
            assert other.container != sandbox.container
            assert client.exec(session, "cat /workspace/memo/session/NOTES.md; echo $COLOUR").stdout == "\n"


@pytest.mark.parametrize("point", ["claim.intent", "claim.mirror", "claim.configured"])
def test_a_claim_that_fails_leaves_nothing_and_can_be_retried(daemon: RunningDaemon, point: str) -> None:
    wait_for_ready(daemon, 2)
    daemon.terminate()
    daemon.start(failpoint=f"{point}=error(ENOSPC)")
    warm = wait_for_ready(daemon, 2)
    with daemon.client() as client:
        with pytest.raises(HostFull):
            client.ensure_sandbox("s1", user="ada")
        assert client.list_sandboxes() == []
        wait_for_ready(daemon, 2)
        assert len(warm & set(daemon.containers())) == 1
        daemon.terminate()
        daemon.start()
        wait_for_ready(daemon, 2)
        assert client.ensure_sandbox("s1", user="ada").from_pool


def test_concurrent_claims_get_a_container_each(daemon: RunningDaemon) -> None:
    wait_for_ready(daemon, 2)
    with daemon.client() as client:
        sandboxes = _all_at_once(client, 8)
        assert len({sandbox.container for sandbox in sandboxes}) == 8
        assert 2 <= sum(sandbox.from_pool for sandbox in sandboxes) < 8
        for number in range(8):
            assert client.exec(f"s{number}", ["echo", "hello"]).stdout == "hello\n"


def test_the_other_engine_has_a_pool_too() -> None:
    daemon = RunningDaemon(engine="bubblewrap", pool=1)
    try:
        daemon.start()
        with daemon.client() as client:
            for session in ("s1", "s2"):
                wait_for_ready(daemon, 1)
                client.write_memo(session, "NOTES.md", f"# {session}\n")
                assert client.ensure_sandbox(session, user="ada", env={"COLOUR": "blue"}).from_pool
                done = client.exec(session, "cat /workspace/memo/session/NOTES.md; echo $COLOUR")
                assert done.stdout == f"# {session}\nblue\n"
                client.destroy_sandbox(session)
        daemon.terminate()
        daemon.start(pool=0)  # which leaves none of the warm ones
        deadline = time.monotonic() + _HANG_GUARD_S
        while daemon.sandbox_files():
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        daemon.stop()


def _all_at_once(client: Client, count: int) -> list[SandboxView]:
    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(lambda number: client.ensure_sandbox(f"s{number}", user="ada"), range(count)))
