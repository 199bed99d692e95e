"""The examples to copy: agent loops against scripted APIs, rollouts in forks, and a job that changes memory."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from sandboxd.client import Client
from scripts import environment
from tests.integration.scripted_models import (
    Script,
    anthropic_calls,
    anthropic_says,
    openai_calls,
    openai_says,
    serving,
)
from tests.long_runs import scaled
from tests.running import RunningDaemon
from tests.tour import environment_of

pytestmark = pytest.mark.engine

EXAMPLES = Path(__file__).parents[2] / "examples"
REMEMBER = {"file_path": "/workspace/memo/user/USER.md", "contents": "- asks about files\n"}


def run(daemon: RunningDaemon, name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    if not environment.is_up_to_date("suites"):
        pytest.fail("cannot run the examples: run `make environment-suites`", pytrace=False)
    done = subprocess.run(
        [environment.SUITES_VENV / "bin" / "python", EXAMPLES / name, *arguments],
        env={**environment_of(daemon), **variables},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_loop_for_the_anthropic_api_works_in_the_sandbox(daemon: RunningDaemon, client: Client) -> None:
    client.write_memo("ada", "USER.md", "- likes brevity\n", scope="user")
    script = Script(
        [
            anthropic_calls(
                ("Write", {"file_path": "/workspace/a.txt", "contents": "one"}),
                ("Read", {"file_path": "/workspace/missing"}),
            ),
            anthropic_calls(("Bash", {"command": "cat a.txt"})),
            anthropic_says("It contains: one"),
        ]
    )
    with serving(script) as url:
        done = run(daemon, "anthropic_loop.py", "What is in a.txt?", ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="none")
    assert done.stdout == "It contains: one\n"
    first, second, third = script.requests
    assert "- likes brevity" in first["system"]
    assert {"name", "description", "input_schema"} <= set(first["tools"][0])
    written, missing = second["messages"][-1]["content"]
    assert (written["is_error"], missing["is_error"], missing["tool_use_id"]) == (False, True, "toolu_1")
    assert "/workspace/missing" in missing["content"]
    assert third["messages"][-1]["content"][0]["content"] == "one"
    client.destroy_sandbox("anthropic-loop")


def test_the_loop_for_openai_s_api_works_in_the_sandbox(daemon: RunningDaemon, client: Client) -> None:
    script = Script(
        [
            openai_calls(("Bash", '{"command": "echo two > b.txt"}'), ("Bash", "{not json"), ("Bash", "[1]")),
            openai_calls(("Write", json.dumps(REMEMBER))),
            openai_says("Done."),
        ]
    )
    with serving(script) as url:
        done = run(daemon, "openai_loop.py", "Write b.txt.", OPENAI_BASE_URL=url, OPENAI_API_KEY="none")
    assert done.stdout == "Done.\n"
    first, second, _ = script.requests
    assert first["tools"][0]["type"] == "function"
    assert [message["role"] for message in second["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "tool",
    ]
    assert all("send one JSON object" in message["content"] for message in second["messages"][-2:])
    assert client.read_file("openai-loop", "/workspace/b.txt") == b"two\n"
    client.destroy_sandbox("openai-loop")


def test_rollouts_in_forks_find_the_best_action_and_leave_nothing(daemon: RunningDaemon, client: Client) -> None:
    count = scaled(4, 50)
    done = run(daemon, "rl_rollouts.py", str(count))
    assert done.stdout.startswith(f"best of {count}: action (")
    assert [view.session for view in client.list_sandboxes() if view.user == "trainer"] == []


def test_a_live_container_sees_what_a_host_job_writes(daemon: RunningDaemon) -> None:
    assert run(daemon, "refresh_memory.py").stdout.splitlines() == [
        "before: ['- lives in Bern']",
        "after:  ['- lives in Bern', '- prefers short answers']",
        "by hand: Read-only file system",
        "revision 2 by nightly: what was learned",
        "revision 1 by host: no reason given",
    ]
