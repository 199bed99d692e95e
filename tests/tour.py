"""Run the commands of a page exactly as written, and compare their output with the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.running import RunningDaemon


def console_steps(text: str) -> list[tuple[str, str]]:
    """Every command of the page's console blocks, with the output that it shows."""
    steps: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            steps.append((command, output.rstrip("\n")))
    return steps


def environment_of(daemon: RunningDaemon) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SANDBOXD_SOCKET": str(daemon.socket),
    }


def run_step(command: str, daemon: RunningDaemon, cwd: Path | None = None) -> str:
    """Return what the command prints, to stdout and stderr as a terminal shows them."""
    done = subprocess.run(
        ["bash", "-c", command.replace("/run/sandboxd.sock", str(daemon.socket))],
        env=environment_of(daemon),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.rstrip("\n")
