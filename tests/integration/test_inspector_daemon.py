"""`sandboxd inspect` against a real daemon with real sandboxes, as a browser uses it."""

from __future__ import annotations

import http.cookiejar
import json
import os
import secrets
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sandboxd.client import Client
from sandboxd.client.sse import EventReader
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

HANG_S = 60


class Browser:
    """Keeps cookies, and sends its page's origin with changes."""

    def __init__(self, link: str) -> None:
        self.url = link.partition("/__inspector")[0]
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self._opener = urllib.request.build_opener(jar)
        with self._opener.open(link, timeout=HANG_S) as page:
            self.first_url = page.geturl()
            self.first_page = page.read().decode()

    def open(self, path: str) -> Any:
        return self._opener.open(f"{self.url}{path}", timeout=HANG_S)

    def json(self, path: str) -> Any:
        with self.open(path) as answer:
            return json.load(answer)


@contextmanager
def inspecting(daemon: RunningDaemon, *words: str) -> Iterator[Browser]:
    """Run `sandboxd inspect` until the block ends, and open its link."""
    command = [sys.executable, "-m", "sandboxd", "inspect", *words, "--json"]
    env = {**os.environ, "SANDBOXD_SOCKET": str(daemon.socket)}
    with subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield Browser(json.loads(process.stdout.readline())["url"])
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(HANG_S) == 0


@pytest.fixture
def session(client: Client) -> Iterator[str]:
    name = f"seen-{secrets.token_hex(4)}"
    client.ensure_sandbox(name, user="ada")
    yield name
    client.destroy_sandbox(name, missing_ok=True)


def test_a_browser_sees_what_happened_in_a_session(daemon: RunningDaemon, client: Client, session: str) -> None:
    client.append_messages(session, [{"role": "user", "content": "say hello"}])
    client.exec(session, "echo hello-from-inside; exit 3")
    client.append_trace(session, [{"type": "agent.note", "text": "done"}])
    with inspecting(daemon, session) as browser:
        assert browser.first_url.endswith(f"/__inspector/#/tenants/default/sessions/{session}")
        assert "<html" in browser.first_page
        place = f"/__inspector/api/tenants/default/sessions/{session}"
        shown = browser.json(place)
        assert (shown["state"], shown["sandbox"]["user"]) == ("ready", "ada")
        entries = browser.json(f"{place}/timeline")["items"]
        assert {"message", "exec", "trace"} <= {entry["kind"] for entry in entries}
        (command,) = [entry for entry in entries if entry["kind"] == "exec"]
        assert command["title"].startswith("echo hello-from-inside")
        assert command["ok"] is False
        assert session in [one["session"] for one in browser.json("/__inspector/api/overview")["sandboxes"]]
        hits = browser.json("/__inspector/api/search?q=SAY%20hello")["items"]
        assert session in [hit["session"] for hit in hits if hit["type"] == "message"]


def test_the_resource_usage_of_a_container_is_streamed(daemon: RunningDaemon, session: str) -> None:
    reader = EventReader()
    samples: list[Any] = []
    with inspecting(daemon) as browser, browser.open("/__inspector/api/stats") as stream:
        while len(samples) < 2:
            samples += [json.loads(data) for name, data in reader.feed(stream.read1(65_536)) if name == "stats"]
    (usage,) = [one for one in samples[1]["sandboxes"] if one["session"] == session]
    assert usage["memory_limit_bytes"] > usage["memory_bytes"] > 0
    assert usage["processes"] >= 1
    assert usage["cpu_percent"] is not None
    assert samples[1]["host"]["disk_total"] > 0


def test_the_port_is_closed_after_ctrl_c(daemon: RunningDaemon) -> None:
    with inspecting(daemon) as browser:
        assert browser.json("/__inspector/api/overview")["ready"] is True
    with pytest.raises(urllib.error.URLError):
        browser.open("/__inspector/")


def test_a_session_that_does_not_exist_is_a_failure(daemon: RunningDaemon) -> None:
    env = {**os.environ, "SANDBOXD_SOCKET": str(daemon.socket)}
    done = subprocess.run(
        [sys.executable, "-m", "sandboxd", "inspect", "nobody-has-this"],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("cannot find this session")


def test_a_timeline_is_complete_after_a_kill(engine_socket: str, agent_image: str) -> None:
    running = RunningDaemon(image=agent_image)
    try:
        running.start()
        with running.client() as client:
            client.ensure_sandbox("s", user="ada")
            for number in range(20):
                client.exec("s", f"echo {number}")
        running.kill()
        running.start()
        with inspecting(running, "s") as browser:
            entries = browser.json("/__inspector/api/tenants/default/sessions/s/timeline?limit=1000")["items"]
        titles = [entry["title"] for entry in entries if entry["kind"] == "exec"]
        assert titles == [f"echo {number}" for number in range(20)]
        assert running.terminate() == 0
    finally:
        running.stop()
