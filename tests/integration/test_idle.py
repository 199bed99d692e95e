"""An unused sandbox hibernates some time after its last use: its container goes, and never its files."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.running import RunningDaemon, newest_event, wait_for_state

pytestmark = pytest.mark.engine


@pytest.fixture
def daemon() -> Iterator[RunningDaemon]:
    running = RunningDaemon(engine="bubblewrap", idle_timeout_s=2, limits='{"disk_mb": 8}')
    try:
        yield running.start()
    finally:
        running.stop()


def test_an_idle_sandbox_hibernates_but_not_during_a_call(engine_socket: str, agent_image: str) -> None:
    daemon = RunningDaemon(image=agent_image, idle_timeout_s=2)
    try:
        daemon.start()
        with daemon.client() as client, daemon.client() as caller, ThreadPoolExecutor(1) as thread:
            seen = newest_event(client)
            client.ensure_sandbox("busy", user="ada")
            call = thread.submit(caller.exec, "busy", "until [ -e end ]; do sleep 0.1; done; echo finished")
            client.ensure_sandbox("idle", user="ada")
            wait_for_state(client, "idle", "hibernated", after=seen)  # the call has been under way for longer than that
            idle = client.get_sandbox("idle")
            assert (idle.state, idle.cause, idle.container) == ("hibernated", "idle", None)
            assert client.get_sandbox("busy").state == "ready"
            client.write_file("busy", "/workspace/end", b"")
            assert call.result().stdout == "finished\n"
            wait_for_state(client, "busy", "hibernated", after=seen)
            for session in ("busy", "idle"):
                client.destroy_sandbox(session)
        assert daemon.containers() == []
        assert daemon.mounts() == []
    finally:
        daemon.stop()


def test_a_call_resumes_an_idle_sandbox_with_its_files(daemon: RunningDaemon) -> None:
    with daemon.client() as client:
        seen = newest_event(client)
        client.ensure_sandbox("s1", user="ada")
        client.exec("s1", "echo kept > /workspace/file")
        wait_for_state(client, "s1", "hibernated", after=seen)
        assert client.exec("s1", "cat /workspace/file").stdout == "kept\n"
        assert client.get_sandbox("s1").state == "ready"
        removed = [event.fields for event in client.events(after=seen, follow=False) if event.kind == "workspace"]
        assert removed == []
        client.destroy_sandbox("s1")
        (gone,) = [event.fields for event in client.events(after=seen, follow=False) if event.kind == "workspace"]
        assert (gone["what"], gone["session"], gone["cause"]) == ("removed", "s1", "asked")
    assert "workspace removed" in daemon.log.read_text()


@pytest.mark.parametrize(
    "leave",
    [
        lambda client: client.start_process("s1", "sleep 1000"),
        lambda client: client.start_process("s1", "sh", tty=True),
        lambda client: client.exec("s1", "setsid sleep 1000 >/dev/null 2>&1 &"),
    ],
    ids=["process", "terminal", "left behind by a command"],
)
def test_a_running_process_keeps_the_container_of_its_sandbox(daemon: RunningDaemon, leave: object) -> None:
    with daemon.client() as client:
        seen = newest_event(client)
        client.ensure_sandbox("s1", user="ada")
        leave(client)  # type: ignore[operator]
        client.ensure_sandbox("idle", user="ada")
        wait_for_state(client, "idle", "hibernated", after=seen)
        # s1 was last used earlier, so it has been checked by now, or will be in the next round.
        seen = newest_event(client)
        client.ensure_sandbox("idle", user="ada")
        wait_for_state(client, "idle", "hibernated", after=seen)
        assert client.get_sandbox("s1").state == "ready"
