"""A model that makes every common mistake in a real sandbox: the results are those of the fake engine's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from sandboxd.client import Client
from tests.model_mistakes import FILES, MISTAKES, prepare
from tests.running import RunningDaemon
from tests.tool_doors import DOORS

pytestmark = pytest.mark.engine


@pytest.fixture
def session(client: Client) -> Iterator[str]:
    name = f"s-{secrets.token_hex(4)}"
    client.ensure_sandbox(name, f"user-of-{name}")
    yield name
    client.destroy_sandbox(name)


@pytest.mark.parametrize("door", DOORS)
def test_a_model_is_told_what_to_do_after_every_mistake(
    daemon: RunningDaemon, client: Client, session: str, door: str
) -> None:
    prepare(client, session, f"user-of-{session}")
    for mistake in MISTAKES:
        mistake.check_result(DOORS[door](daemon.socket, session, mistake.tool, mistake.arguments))
    assert {path: client.read_file(session, path) for path in FILES} == FILES


def test_the_arguments_of_other_agents_work(client: Client, session: str) -> None:
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("Write", {"path": "src/a.py", "contents": "print(1)\nprint(2)\n"}, "Wrote 18 bytes"),
        ("Edit", {"filePath": "src/a.py", "old_str": "print(2)", "new_str": "print(3)"}, "Replaced once"),
        ("Read", {"file_path": "src/a.py", "offset": "-1"}, "     2\tprint(3)"),
        ("Bash", {"cmd": ["python3", "a.py"], "cwd": "src", "description": "Run it", "timeout": "10000"}, "1\n3"),
        ("Glob", {"pattern": "*.py", "path": "src", "head_limit": 3}, "/workspace/src/a.py\n[ignored"),
        ("Bash", {"command": "echo late", "run_in_background": "true"}, "read it with ProcessOutput"),
    ]
    for tool, arguments, expected in calls:
        result = client.tool(session, tool, arguments)
        assert (result.ok, expected in result.content) == (True, True), (tool, result)
