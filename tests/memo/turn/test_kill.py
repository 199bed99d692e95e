"""kill -9 during flushes: each flush is atomic. `make test-all` kills a hundred times per store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long_runs import scaled

ROUNDS = {"sqlite": 100, "filesystem": scaled(40, 100)}


# Specification: 003.4
@pytest.mark.parametrize(("kind", "rounds"), ROUNDS.items())
def test_a_killed_flush_is_atomic(kind: str, rounds: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.memo.turn.flush_writer", kind, str(tmp_path), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["rounds"] == rounds
    assert told["in_flush"] > rounds // 10, "the kills missed the flushes, so this proves nothing"
