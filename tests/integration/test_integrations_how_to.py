"""The pages "in ten minutes": each shows an example as it is here, and the example prints what the page shows."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts import environment
from tests.running import RunningDaemon
from tests.tour import environment_of

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in (ROOT / "docs" / "how-to" / "integrations").glob("*.md") if path.name != "README.md")


@pytest.fixture(scope="module")
def daemon(engine_socket: str, agent_image: str) -> Iterator[RunningDaemon]:
    """A daemon that only these pages use: they show the whole memory of a user."""
    running = RunningDaemon(image=agent_image)
    try:
        yield running.start()
    finally:
        running.stop()


def shown(page: Path) -> tuple[str, str, str]:
    """Return the command that installs, the name of the example, and what it prints."""
    text = page.read_text()
    [install] = re.findall(r"```console\n\$ (pip install .*)\n```", text)
    [(example, program)] = re.findall(r"\[examples/integrations/(\w+\.py)\].*?```python\n(.*?)```", text, re.DOTALL)
    [printed] = re.findall(r"It prints\n\n```text\n(.*?)```", text, re.DOTALL)
    assert program == (ROOT / "examples" / "integrations" / example).read_text(), f"{page.name} shows an older example"
    return install, example, printed


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def test_every_example_has_a_page_and_the_index_lists_them() -> None:
    index = (ROOT / "docs" / "how-to" / "integrations" / "README.md").read_text()
    examples = {path.name for path in (ROOT / "examples" / "integrations").glob("*.py")}
    assert {shown(page)[1] for page in PAGES} == examples
    for page in PAGES:
        assert f"| `{shown(page)[0]}` | [{page.name}]({page.name}) |" in index


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_example_of_the_page_prints_what_the_page_shows(daemon: RunningDaemon, tmp_path: Path, page: Path) -> None:
    if not environment.is_up_to_date("suites"):
        pytest.fail("cannot run the examples: run `make environment-suites`", pytrace=False)
    _, example, printed = shown(page)
    done = subprocess.run(
        [environment.SUITES_VENV / "bin" / "python", ROOT / "examples" / "integrations" / example],
        env={**environment_of(daemon), "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout) == lines(printed)
