"""A sandbox that nobody uses goes by itself, counted from the end of the last call."""

from __future__ import annotations

import pytest

from sandboxd.errors import NotFound
from tests.running import RunningDaemon, newest_event, wait_for_state

pytestmark = [pytest.mark.engine]


def test_an_idle_sandbox_is_destroyed_and_one_with_a_call_under_way_is_not(
    engine_socket: str, agent_image: str
) -> None:
    daemon = RunningDaemon(image=agent_image, idle_timeout_s=2)
    try:
        daemon.start()
        with daemon.client() as client:
            seen = newest_event(client)
            client.ensure_sandbox("busy", user="ada")
            client.ensure_sandbox("idle", user="ada")
            assert client.exec("busy", "sleep 6; echo finished").stdout == "finished\n"
            with pytest.raises(NotFound):
                client.get_sandbox("idle")
            assert client.get_sandbox("busy").state == "ready"
            wait_for_state(client, "busy", "removed", after=seen)
        assert daemon.containers() == []
        assert daemon.mounts() == []
    finally:
        daemon.stop()
