"""A real daemon with a certificate: its TCP socket speaks TLS, and a drain ends it as usual."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from pathlib import Path

import pytest

from tests.certificates import make_pair
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

TOKEN = "0123456789abcdef" * 2


def test_a_command_runs_over_tls_while_the_unix_socket_stays_plain(agent_image: str, tmp_path: Path) -> None:
    cert, key = make_pair(tmp_path, "server")
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    daemon = RunningDaemon(
        image=agent_image, tcp=f"127.0.0.1:{port}", token_file=token_file, tls_cert=cert, tls_key=key
    )
    try:
        daemon.start()
        with daemon.client() as client:
            client.ensure_sandbox("s1", "u1")
        trusting = ssl.create_default_context(cafile=cert)
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=trusting, timeout=60)
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        body = json.dumps({"command": "echo over TLS"})
        connection.request("POST", "/v1/tenants/default/sessions/s1/exec", body, headers)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["stdout"]) == (200, "over TLS\n")
        assert daemon.terminate() == 0, "although the client keeps its idle connection open"
        connection.close()
    finally:
        daemon.stop()
