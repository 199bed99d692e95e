"""The `tokens` setting of a real daemon: its answers count as the setting says, and a misspelt model is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from memo.token_tables import find_tables
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

TEXT = "word " * 1000


# Specification: 002.31
@pytest.mark.parametrize(("tokens", "expected"), [("claude", 1429), ("gpt-4o", 1001)])
def test_the_daemon_counts_the_tokens_of_the_configured_model(tokens: str, expected: int, agent_image: str) -> None:
    tables = find_tables("o200k_base")
    if tokens == "gpt-4o" and tables is None:
        pytest.skip("no table of o200k_base on this machine")
    daemon = RunningDaemon(image=agent_image, tokens=tokens, token_tables=tables or "/nowhere", token_download=False)
    try:
        daemon.start()
        with daemon.client() as client:
            client.ensure_session("s1", "u1")
            client.write_memo("s1", "NOTES.md", TEXT)
            (document,) = [one for one in client.list_memo("s1") if one.name == "NOTES.md"]
            assert (document.tokens, document.tokens_exact) == (expected, tokens == "gpt-4o")
            client.append_messages("s1", [{"role": "user", "content": TEXT}] * 3)
            assert len(client.load_messages("s1", budget=2 * (expected + 4))) == 2
            assert len(client.load_messages("s1", budget=2 * (expected + 4) - 1)) == 1
            assert client.compact_session("s1", force=True).tokens_exact is (tokens == "gpt-4o")
    finally:
        daemon.stop()


def test_a_daemon_with_an_unknown_model_does_not_start_and_says_what_to_give(tmp_path: Path) -> None:
    environment = {**os.environ, "SANDBOXD_TOKENS": "my-model", "SANDBOXD_DATA": str(tmp_path)}
    command = [sys.executable, "-m", "sandboxd", "serve"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "cannot count tokens of my-model" in done.stderr
    assert "o200k_base" in done.stderr
