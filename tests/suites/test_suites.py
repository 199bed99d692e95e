"""Suites that other projects wrote for sandboxes, against a real daemon: each in a pytest of its own environment.

Every test of a suite is a subtest here. README.md in this directory describes each suite and its expected failures.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts import environment
from tests.running import RunningDaemon

HERE = Path(__file__).parent
SUITES = sorted(path.stem.removeprefix("suite_") for path in HERE.glob("suite_*.py"))
TIMEOUT_S = 240
LARGEST_DOCUMENT = 16_777_216


@pytest.fixture(scope="module")
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    if not environment.is_up_to_date("suites"):
        pytest.fail("cannot run the suites: run `make environment-suites`", pytrace=False)
    running = RunningDaemon(image=agent_image, tmp_exec=True, max_document_bytes=LARGEST_DOCUMENT)
    try:
        yield running.start()
        assert running.terminate() == 0
    finally:
        running.stop()


@pytest.mark.engine
@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("suite", SUITES)
def test_the_suite_passes(daemon: RunningDaemon, tmp_path: Path, subtests: pytest.Subtests, suite: str) -> None:
    report = tmp_path / "report.xml"
    done = subprocess.run(
        [
            environment.SUITES_VENV / "bin" / "python",
            *("-m", "pytest", "-q", "-c", HERE / "suites.ini", HERE / f"suite_{suite}.py"),
            *(f"--junitxml={report}", f"--basetemp={tmp_path / 'work'}"),
        ],
        env={
            **os.environ,
            "SANDBOXD_SOCKET": str(daemon.socket),
            "SANDBOXD_TEST_PYTHON": sys.executable,  # where the command line is installed with all it needs
            "HOME": str(tmp_path),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
    )
    cases = ElementTree.parse(report).findall(".//testcase") if report.exists() else []
    assert cases, f"the suite did not run:\n{done.stdout[-4000:]}"
    for case in cases:
        with subtests.test(case.get("name")):
            tell(case)
    assert done.returncode in (0, 1), done.stdout[-4000:]


def tell(case: ElementTree.Element) -> None:
    """Report the outcome of the suite's test."""
    for problem in (*case.findall("failure"), *case.findall("error")):
        pytest.fail(f"{problem.get('message')}\n{(problem.text or '')[-4000:]}", pytrace=False)
    for skipped in case.findall("skipped"):
        end = pytest.xfail if skipped.get("type") == "pytest.xfail" else pytest.skip
        end(skipped.get("message") or "")
