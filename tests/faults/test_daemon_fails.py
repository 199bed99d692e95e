"""A daemon that cannot continue logs it once and exits: it never keeps running without serving."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from sandboxd.daemon.loop_watchdog import EXIT_CODE
from sandboxd.errors import SandboxdError
from tests.running import READY_S, RunningDaemon

pytestmark = pytest.mark.engine


@pytest.fixture
def bubblewrapped() -> Iterator[RunningDaemon]:
    running = RunningDaemon(engine="bubblewrap", limits='{"disk_mb": 8}')
    try:
        yield running
        if running.process is not None and running.process.poll():
            clear(running)
    finally:
        running.stop()


def clear(daemon: RunningDaemon) -> None:
    """Start it again, which removes what the failed one left behind."""
    deadline = time.monotonic() + READY_S
    with daemon.start().client() as client:
        while sandboxes := client.list_sandboxes():
            assert time.monotonic() < deadline
            for sandbox in sandboxes:
                with suppress(SandboxdError):  # gone by now, or still being removed by the engine
                    client.destroy_sandbox(sandbox.session)


def log_of(daemon: RunningDaemon, level: str) -> list[dict[str, str]]:
    lines = [json.loads(line) for line in daemon.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line.get("level") == level]


def ask_for_a_sandbox(daemon: RunningDaemon) -> None:
    with daemon.client() as client, suppress(SandboxdError):
        client.ensure_sandbox("s1", user="ada")


def test_a_background_task_that_dies_ends_the_process_with_one_message(bubblewrapped: RunningDaemon) -> None:
    bubblewrapped.start(failpoint="create.workspace=bug")
    ask_for_a_sandbox(bubblewrapped)
    assert bubblewrapped.wait() == EXIT_CODE
    (failure,) = log_of(bubblewrapped, "critical")
    assert failure["event"].startswith("cannot continue")
    assert "a failpoint stands for a bug" in failure["reason"]
    assert "Traceback" in failure["exception"]
    assert not any(line.startswith("Traceback") for line in bubblewrapped.log.read_text().splitlines())


def test_a_blocked_event_loop_ends_the_process_and_shows_where_it_was_blocked(
    bubblewrapped: RunningDaemon,
) -> None:
    bubblewrapped.start(failpoint="create.workspace=block(600000)", loop_stall_s=1)
    ask_for_a_sandbox(bubblewrapped)
    assert bubblewrapped.wait() == EXIT_CODE
    (failure,) = log_of(bubblewrapped, "critical")
    assert "was blocked" in failure["reason"]
    assert "failpoints.py" in bubblewrapped.log.read_text()


def test_a_suspended_process_continues_when_resumed(bubblewrapped: RunningDaemon) -> None:
    stall_s = 2.0
    bubblewrapped.start(loop_stall_s=stall_s)
    bubblewrapped.process.send_signal(signal.SIGSTOP)  # type: ignore[union-attr]
    time.sleep(stall_s * 1.5)  # longer than a running loop may stall
    bubblewrapped.process.send_signal(signal.SIGCONT)  # type: ignore[union-attr]
    with bubblewrapped.client() as client:
        assert client.list_sandboxes() == []
    assert bubblewrapped.terminate() == 0
    assert log_of(bubblewrapped, "critical") == []


def test_a_store_that_cannot_be_opened_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "memo.db").write_text("this is not a database\n" * 100)
    options = ["--engine", "bubblewrap", "--data", str(tmp_path / "data"), "--socket", str(tmp_path / "d.sock")]
    done = subprocess.run(
        [sys.executable, "-m", "sandboxd", "serve", *options, "--store", f"sqlite:///{tmp_path / 'memo.db'}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=READY_S,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("cannot")
    assert "Traceback" not in done.stderr


def test_a_data_directory_is_created_with_its_parents(bubblewrapped: RunningDaemon) -> None:
    bubblewrapped.data = bubblewrapped.data / "a" / "b"
    bubblewrapped.start()
    assert (bubblewrapped.data / "memo.db").exists()
    assert bubblewrapped.terminate() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory away")
def test_nothing_is_created_in_another_user_s_data_directory(bubblewrapped: RunningDaemon) -> None:
    bubblewrapped.data.mkdir()
    os.chown(bubblewrapped.data, 10002, 10002)
    bubblewrapped.launch()
    assert bubblewrapped.wait() == 1
    assert "it belongs to uid 10002" in bubblewrapped.log.read_text()
    assert list(bubblewrapped.data.iterdir()) == []
    os.chown(bubblewrapped.data, 0, 0)


def test_a_second_signal_ends_the_drain_without_a_traceback(bubblewrapped: RunningDaemon) -> None:
    with bubblewrapped.start(drain_s=600).client() as client:
        client.ensure_sandbox("s1", user="ada")

        def call() -> None:
            with bubblewrapped.client() as caller, suppress(SandboxdError):
                caller.exec("s1", "touch /workspace/begun; sleep 600", timeout_s=600)

        with ThreadPoolExecutor(1) as pool:
            pool.submit(call)
            deadline = time.monotonic() + READY_S
            while client.exec("s1", "test -e /workspace/begun").exit_code:
                assert time.monotonic() < deadline
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(bubblewrapped.pid, number)
            assert bubblewrapped.wait() == 0
    assert "Traceback" not in bubblewrapped.log.read_text()
    clear(bubblewrapped)
