"""kill -9 during flushes, a hundred times: each flush is stored whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.memo.turn.stores import DURABLE

ROUNDS = 100


@pytest.mark.parametrize("kind", DURABLE)
def test_a_killed_flush_is_stored_whole_or_not_at_all(kind: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.memo.turn.flush_writer", kind, str(tmp_path), str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["rounds"] == ROUNDS
    assert told["in_flush"] > ROUNDS // 10, "the kills missed the flushes, so this proves nothing"
