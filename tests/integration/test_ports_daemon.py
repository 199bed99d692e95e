"""A web server in a container: through the API, a forwarded port and a browser, and after a restart of the daemon."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sandboxd.client import Client, Sandbox
from scripts.tools import find_program
from tests.running import RunningDaemon, free_port

pytestmark = pytest.mark.engine

TOKEN = "0123456789abcdef" * 2
PORT = 8000
SERVER = Path(__file__).with_name("page_server.py")
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def serving_daemon(agent_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    token_file = tmp_path_factory.mktemp("ports") / "token"
    token_file.write_text(TOKEN)
    running = RunningDaemon(image=agent_image, tcp=f"127.0.0.1:{free_port()}", token_file=token_file)
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture(scope="module")
def sandbox(serving_daemon: RunningDaemon) -> Iterator[Sandbox]:
    with Sandbox.create("web", user="ada", socket=serving_daemon.socket) as sandbox:
        sandbox.files.write("/workspace/page_server.py", SERVER.read_text())
        process = sandbox.client.start_process("web", ["python3", "page_server.py", str(PORT)])
        assert sandbox.client.read_process("web", process.id, wait_s=20).data == b"ready\n"
        yield sandbox


def ask(daemon: RunningDaemon, url: str) -> tuple[int, bytes]:
    """Send a request as a browser does, to the host in the URL; not every resolver knows names below localhost."""
    _, _, port = str(daemon.settings["tcp"]).rpartition(":")
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
    try:
        parts = urlsplit(url)
        connection.request("GET", parts.path, headers={"Host": parts.netloc})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_a_server_in_a_container_is_listed_and_answers(serving_daemon: RunningDaemon, sandbox: Sandbox) -> None:
    (found,) = sandbox.ports.list()
    (process,) = sandbox.client.list_processes("web")
    assert (found.port, found.process) == (PORT, process.id)
    url = f"http://{serving_daemon.settings['tcp']}/v1/tenants/default/sessions/web/ports/{PORT}/a%2Fb?c"
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
    with urllib.request.urlopen(asked, timeout=60) as answer:
        assert answer.read() == b"GET /a%2Fb?c localhost:8000\n"


def test_a_forwarded_port_leads_into_the_container(serving_daemon: RunningDaemon, sandbox: Sandbox) -> None:
    with sandbox.ports.forward(PORT) as forwarder, urllib.request.urlopen(f"{forwarder.url}/x", timeout=60) as answer:
        assert answer.read() == f"GET /x 127.0.0.1:{forwarder.port}\n".encode()


def test_a_preview_opens_in_a_browser_with_its_websocket(
    serving_daemon: RunningDaemon, sandbox: Sandbox, tmp_path: Path
) -> None:
    chromium = find_program("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed; run `make tools` as root on Debian")
    url = sandbox.ports.preview(PORT, ttl_s=600).url
    done = subprocess.run(
        [chromium, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", url],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert '<p id="socket">echo of hello for http://localhost:8000</p>' in done.stdout, done.stderr[-2000:]
    assert '<p id="posted">from the page, visited=yes</p>' in done.stdout


def test_a_preview_outlives_a_restart_of_the_daemon(serving_daemon: RunningDaemon, sandbox: Sandbox) -> None:
    url = sandbox.ports.preview(PORT, ttl_s=600).url
    assert ask(serving_daemon, f"{url}x")[0] == 200
    assert serving_daemon.terminate() == 0
    serving_daemon.start()
    assert ask(serving_daemon, f"{url}x") == (200, b"GET /x localhost:8000\n")
    with Client(serving_daemon.socket) as client:
        client.destroy_sandbox("web")
    assert ask(serving_daemon, f"{url}x")[0] == 404


def test_the_command_prints_a_preview_url(serving_daemon: RunningDaemon, sandbox: Sandbox) -> None:
    with Sandbox.create("web", user="ada", socket=serving_daemon.socket):
        done = subprocess.run(
            [sys.executable, "-m", "sandboxd", "preview", "web", "8000", "--ttl", "90s"],
            env={**os.environ, "SANDBOXD_SOCKET": str(serving_daemon.socket)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert urlsplit(done.stdout.strip()).netloc.endswith(f".localhost:{str(serving_daemon.settings['tcp'])[10:]}")
