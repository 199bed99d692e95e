"""The how-to on the client, run against a daemon exactly as written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import RunningDaemon
from tests.tour import environment_of

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-the-client.md"
PRINTED = (
    [
        "hello 3",
        "one",
        "",
        "error: two",
        "",
        "0 got this",
        "buy milk b'buy milk\\n'",
        "- send the report",
        "/workspace",
    ],
    ["hello", "['1', '2']"],
)


@pytest.mark.parametrize("number", range(len(PRINTED)))
def test_the_python_of_the_page_prints_what_the_page_says(daemon: RunningDaemon, number: int) -> None:
    sources = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(sources) == len(PRINTED)
    done = subprocess.run(
        [sys.executable, "-c", sources[number]],
        env=environment_of(daemon),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # stdout and stderr of a command are separate streams, whose order is not fixed
    assert sorted(done.stdout.splitlines()) == sorted(PRINTED[number])
