"""A session in which everything has happened that the inspector shows, made through the daemon's API."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

from sandboxd.client import Client

SESSION = "research"
HOME = f"#/tenants/default/sessions/{SESSION}"
VIEWS = (
    "#/",
    "#/sessions",
    "#/search?q=board",
    "#/tenants/default/users/ada",
    f"{HOME}/timeline",
    f"{HOME}/memory/session/NOTES.md",
    f"{HOME}/memory/session/NOTES.md?from=1&to=2",
    f"{HOME}/memory/artifacts/call-7",
    f"{HOME}/files?path=/workspace/greeting.txt",
    f"{HOME}/processes",
    f"{HOME}/terminal",
    f"{HOME}/agents/cutter",
    f"{HOME}/copies",
)
NOTES = "# Notes\n\n- the user **measures** twice\n- [x] sand it\n\n| tool | use |\n|---|---|\n| saw | `cut` |\n"
ORCHESTRATION = [
    {"eventId": "1", "type": "agent_spawned", "agentId": "planner", "role": "lead", "prompt": "Plan the cut"},
    {"eventId": "2", "type": "agent_spawned", "agentId": "measurer", "parentAgentId": "planner", "role": "worker"},
    {"eventId": "3", "type": "agent_spawned", "agentId": "cutter", "parentAgentId": "planner", "role": "worker"},
    {"eventId": "4", "type": "message", "from": "measurer", "to": "cutter", "text": "42 cm"},
]
LETTER = {"eventId": "5", "type": "input_enqueued", "agentId": "cutter", "payload": {"prompt": "Cut at 42 cm"}}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def post(daemon: Path, path: str, body: object) -> Any:
    """Call a route as a program without the client does."""
    connection = _UnixConnection(daemon)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status < 300, f"{path}: {answer.status} {text}"
        return json.loads(text) if text else None
    finally:
        connection.close()


def orchestration(session: str, part: str) -> str:
    return f"/v1/tenants/default/sessions/{session}/orchestration/{part}"


def tell(client: Client, daemon: Path) -> None:
    client.ensure_sandbox(SESSION, user="ada", limits={"memory_mb": 128, "pids": 64})
    client.exec(SESSION, "echo hello > greeting.txt; mkdir -p src/app; echo 'print(1)' > src/app/main.py; ls")
    client.exec(SESSION, "echo to stderr >&2; exit 3")
    client.exec(SESSION, ["python3", "-c", "bytearray(10**9)"])
    client.write_memo(SESSION, "NOTES.md", NOTES)
    client.append_memo(SESSION, "NOTES.md", "- and sands it\n", actor="colleague", reason="heard in passing")
    client.write_memo("ada", "USER.md", "# Ada\n- likes tea\n", scope="user")
    for turn in range(1, 4):
        talk: list[dict[str, Any]] = [
            {"role": "user", "content": f"Question {turn}: how long is the board?"},
            {"role": "assistant", "content": [{"type": "text", "text": "I **measure** it."}, call(turn)]},
            {"role": "toolResult", "toolCallId": f"c{turn}", "toolName": "Bash", "content": "42 plan.md"},
        ]
        client.append_turn(SESSION, talk, {"input": 800 * turn, "output": 100 * turn})
    result = {"role": "toolResult", "toolCallId": "call-7", "content": "one of very many lines of a log\n" * 2000}
    client.compact_tool_results(SESSION, [result], keep_recent=0)
    post(daemon, orchestration(SESSION, "events"), {"events": ORCHESTRATION})
    post(daemon, orchestration(SESSION, "agents/cutter/mailbox"), {"events": [LETTER]})


def call(number: int) -> dict[str, Any]:
    return {"type": "toolCall", "id": f"c{number}", "name": "Bash", "arguments": {"command": "wc -c plan.md"}}
