"""The last steps of the store how-to, run as written: serve the reader's own store, and see its text in a sandbox."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.memo.test_how_to_write_a_store import BIN, PAGE, write_program
from tests.tour import console_steps

pytestmark = pytest.mark.engine


def test_the_store_of_the_page_is_served_from_its_own_directory(
    engine_socket: str, agent_image: str, tmp_path: Path
) -> None:
    write_program(PAGE.read_text(), tmp_path)
    steps = console_steps(PAGE.read_text())
    commands = [command for command, _ in steps]
    (serve,) = [command for command in commands if command.startswith("sandboxd serve")]
    after = steps[commands.index(serve) + 1 :]
    assert len(after) == 3
    env = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "SANDBOXD_DATA": str(tmp_path / "data"),
        "SANDBOXD_SOCKET": str(tmp_path / "s.sock"),
        "SANDBOXD_POOL": "0",
    }
    with subprocess.Popen(serve.split(), cwd=tmp_path, env=env, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        try:
            assert json.loads(daemon.stdout.readline())["store"] == "python:my_store:make_store"
            for command, shown in after:
                done = subprocess.run(
                    ["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
                )
                assert done.stdout.rstrip("\n") == shown, done.stderr
        finally:
            subprocess.run([BIN / "sandboxd", "rm", "demo"], env=env, capture_output=True, timeout=60, check=False)
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0
