"""The MCP project's own programs against the daemon: its conformance suite, and the command line of its Inspector."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxd.client import Client
from tests.integration.mcp_relay import ARTIFACT, STATIC, WATCHED, relaying
from tests.integration.test_mcp_daemon import TOKEN, with_tcp
from tests.long_runs import scaled
from tests.running import RunningDaemon

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not scaled(0, 1), reason="npm installs the programs: `make test-all` does it"),
]

SUITE = Path(__file__).parents[1] / "suites" / "mcp"
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "mcp.md"
RUN_S = 240
IS_ERROR = 5
"""The Inspector's exit status for a result with `isError`."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the installed programs, with the Node.js that they need."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    place = tmp_path_factory.mktemp("npm")
    shutil.copy(SUITE / "package.json", place)
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--prefix", place], check=True, capture_output=True)
    return place / "node_modules" / ".bin"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    running = with_tcp(tmp_path_factory.mktemp("mcp"), agent_image)
    try:
        yield running.start()
        assert running.terminate() == 0  # I11
    finally:
        running.stop()


@pytest.mark.anyio
async def test_the_conformance_suite_fails_only_where_it_must(
    daemon: RunningDaemon, client: Client, programs: Path, tmp_path: Path
) -> None:
    client.ensure_sandbox("suite", "ada")
    client.write_memo("suite", STATIC, "what the resource contains\n")
    client.write_memo("suite", WATCHED, "what is watched\n")
    client.write_artifact("suite", ARTIFACT, "the result of call 123")
    async with relaying(str(daemon.settings["tcp"]), TOKEN) as address:
        words = ["server", "--suite", "all", "--url", f"http://{address}/mcp?session=suite"]
        words += ["--expected-failures", str(SUITE / "expected_failures.yml"), "-o", str(tmp_path)]
        with anyio.fail_after(RUN_S):
            done = await anyio.run_process(
                [programs / "node", programs / "conformance", *words], stderr=subprocess.STDOUT, check=False
            )
    said = done.stdout.decode()
    assert done.returncode == 0, said[said.find("=== SUMMARY") :]
    passed = re.findall(r"^✓ ([\w-]+):", said, re.MULTILINE)
    page = PAGE.read_text()
    assert [name for name in passed if f"`{name}`" not in page] == [], "the page lists what passes"


@pytest.mark.parametrize("door", ["stdio", "http"])
def test_the_inspector_lists_calls_and_reads(daemon: RunningDaemon, client: Client, programs: Path, door: str) -> None:
    session = f"inspected-{door}"
    if door == "stdio":
        server = [sys.executable, "-m", "sandboxd", "mcp", "--socket", str(daemon.socket), "--session", session]
    else:
        server = [f"http://{daemon.settings['tcp']}/mcp?session={session}", "--transport", "http"]

    def inspect(*words: str, status: int = 0) -> Any:
        token = ["--header", f"Authorization: Bearer {TOKEN}"] if door == "http" else []
        done = subprocess.run(
            [programs / "node", programs / "mcp-inspector", "--cli", *server, "--method", *words, *token],
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
        assert done.returncode == status, done.stderr
        return json.loads(done.stdout)

    tools = {tool["name"] for tool in inspect("tools/list")["tools"]}
    assert {"Bash", "Read", "memo_append"} <= tools
    called = inspect("tools/call", "--tool-name", "Bash", "--tool-arg", "command=id -un")
    assert (called["isError"], called["content"][0]["text"]) == (False, "agent")
    missing = inspect("tools/call", "--tool-name", "Read", "--tool-arg", "file_path=none.txt", status=IS_ERROR)
    assert missing["isError"] is True
    assert "no such file" in missing["content"][0]["text"]
    inspect("tools/call", "--tool-name", "memo_append", "--tool-arg", "name=NOTES.md", "--tool-arg", "content=one")
    assert [item["uri"] for item in inspect("resources/list")["resources"]] == ["memo://session/NOTES.md"]
    assert inspect("resources/read", "--uri", "memo://session/NOTES.md")["contents"][0]["text"] == "one"
    assert len(inspect("resources/templates/list")["resourceTemplates"]) == 3
    assert client.memo_history(session, "NOTES.md")[0].actor.startswith("mcp:")
