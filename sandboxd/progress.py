"""Progress of long set-up steps: one line for each, with elapsed seconds.

On a terminal a running step shows its newest line of output; elsewhere it prints whole lines only. The output of a step
that failed is always shown. Imports only the standard library: set-up uses it before anything is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PLAIN_BEAT_S = 15.0
_TAIL_LINES = 15


class SetupError(Exception):
    """Set-up cannot continue. `advice` is the next step for the reader."""

    code = "setup.failed"

    def __init__(self, sentence: str, advice: str = "") -> None:
        super().__init__(sentence)
        self.advice = advice


def is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and "NO_COLOR" not in os.environ


def say(text: str) -> None:
    arrow = "\x1b[36m==>\x1b[0m" if is_terminal() else "==>"
    print(f"{arrow} {text}", flush=True)


def run_step(
    title: str, command: Sequence[str], *, cannot: str, advice: str = "", env: Mapping[str, str] | None = None
) -> None:
    """Run a command under a title. If it fails, print the end of its output and raise SetupError(cannot)."""
    started = time.monotonic()
    say(title)
    with tempfile.TemporaryFile("w+b") as log:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env)
        except OSError as error:
            raise SetupError(f"{cannot}: {command[0]}: {error.strerror}", advice) from error
        with process:
            try:
                _watch(process, log.fileno(), started)
            except BaseException:
                process.terminate()
                raise
        elapsed = time.monotonic() - started
        if process.returncode != 0:
            for line in _tail(log.fileno(), _TAIL_LINES):
                print(f"    {line}", file=sys.stderr)
            raise SetupError(f"{cannot}: {Path(command[0]).name} exited with {process.returncode}", advice)
    print(f"    done in {elapsed:.0f} s", flush=True)


def _watch(process: subprocess.Popen[bytes], log: int, started: float) -> None:
    beat_s = 0.5 if is_terminal() else _PLAIN_BEAT_S
    while True:
        try:
            process.wait(timeout=beat_s)
        except subprocess.TimeoutExpired:
            elapsed = f"{time.monotonic() - started:.0f} s"
            newest = " ".join(_tail(log, 1))[:90]
            if is_terminal():
                print(f"\r\x1b[K    {elapsed}  {newest}", end="", flush=True)
            else:
                print(f"    {elapsed}: {newest}", flush=True)
            continue
        if is_terminal():
            print("\r\x1b[K", end="", flush=True)
        return


def _tail(log: int, count: int) -> list[str]:
    size = os.fstat(log).st_size
    text = os.pread(log, 16_384, max(0, size - 16_384)).decode(errors="replace")
    # apt and pip redraw a line with carriage returns: the newest drawing is the line.
    lines = [line.rstrip().rpartition("\r")[2].strip() for line in text.split("\n")]
    return [line for line in lines if line][-count:]
