"""A spool of 1 GiB: constant memory, and a line from its middle without reading everything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

MIB = int(os.environ.get("MEMO_TEST_SPOOL_MIB", "1024"))


def test_a_large_spool_uses_constant_memory_and_finds_a_line_with_a_short_read(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.memo.big_spool", str(tmp_path), str(MIB)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    for file in tmp_path.iterdir():
        file.unlink()
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout)
    assert told["size"] == MIB * 1024 * 1024
    assert told["lines"] == MIB * 8192
    assert told["is_right"]
    assert told["grown"] < 48 * 1024 * 1024
    assert told["read_for_one_line"] < 4 * 1024 * 1024
