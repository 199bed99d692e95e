"""The extras as a wheel has them: the page's example works with nothing else installed, and no licence is copyleft.

`make test` installs the wheel next to the packages of the suites. `make test-all` lets pip install each extra into an
environment of its own, exactly as the page says, which takes a minute for each.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distributions
from pathlib import Path

import pytest

from sandboxd.client import Client
from scripts import environment
from scripts.licences import normalised, problems
from tests.integration.test_integrations_how_to import PAGES, lines, shown
from tests.long_runs import scaled
from tests.running import RunningDaemon

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("sandboxd", "memo", "images", "pyproject.toml", "README.md", "LICENSE")
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
REVIEWED = {
    "agent-client-protocol": "its metadata names no licence, its LICENSE file is Apache-2.0",
    "bashlex": "GPL; a dependency of SWE-ReX, which for this reason is not an extra",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp = tmp_path_factory.mktemp("wheel")
    source = tmp / "source"
    source.mkdir()
    for name in SHIPPED:  # a copy, because a build leaves its files in the tree
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    subprocess.run([*PIP, "wheel", "--no-deps", "-w", tmp, source], check=True, capture_output=True, timeout=110)
    (built,) = tmp.glob("*.whl")
    return built


def run_example(python: Path, page: Path, daemon: RunningDaemon, tmp_path: Path) -> None:
    """Run the page's example far from the checkout, and compare what it prints with the page."""
    _, example, printed = shown(page)
    copy = shutil.copy(ROOT / "examples" / "integrations" / example, tmp_path)
    done = subprocess.run(
        [python, copy],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SANDBOXD_SOCKET": str(daemon.socket)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout) == lines(printed)


def test_the_wheel_brings_inspect_its_sandbox(wheel: Path, daemon: RunningDaemon, tmp_path: Path) -> None:
    if not environment.is_up_to_date("suites"):
        pytest.fail("cannot run the examples: run `make environment-suites`", pytrace=False)
    place = tmp_path / "environment"
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    subprocess.run([*PIP, "--python", python, "install", "--no-deps", wheel], check=True, timeout=110)
    (packages,) = place.glob("lib/python*/site-packages")
    (frameworks,) = environment.SUITES_VENV.glob("lib/python*/site-packages")
    (packages / "frameworks.pth").write_text(str(frameworks))
    (page,) = [page for page in PAGES if page.stem == "inspect"]
    run_example(python, page, daemon, tmp_path)


@pytest.mark.skipif(not scaled(0, 1), reason="pip installs a framework for each page: `make test-all` does it")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_page_works_in_a_fresh_environment(wheel: Path, daemon: RunningDaemon, tmp_path: Path, page: Path) -> None:
    place = tmp_path / "environment"
    venv.create(place, with_pip=True)
    wanted = shown(page)[0].removeprefix("pip install ").replace('"', "").split()
    ours = [re.sub(r"^sandboxd", str(wheel), word) for word in wanted]
    python = place / "bin" / "python"
    pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", *ours], check=True, timeout=800)
    subprocess.run([*pip, "check"], check=True, timeout=60)
    run_example(python, page, daemon, tmp_path)


@pytest.mark.skipif(not scaled(0, 1), reason="pip installs a command line: `make test-all` does it")
@pytest.mark.timeout(900)
def test_the_command_line_of_deep_agents_works_in_a_sandbox(
    wheel: Path, daemon: RunningDaemon, client: Client, tmp_path: Path
) -> None:
    place = tmp_path / "environment"
    venv.create(place, with_pip=True)
    (page,) = [page for page in PAGES if page.stem == "deepagents"]
    (wanted, ours) = re.findall(r"^\$ pip install (.*)$", page.read_text(), re.MULTILINE)[1:]
    assert ours == "--no-deps sandboxd"
    pip = [str(place / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", "install"]
    tools = ("pytest", "pytest-asyncio", "pytest-socket", "pytest-timeout")
    subprocess.run([*pip, *wanted.split(), *tools], check=True, timeout=800)
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True, timeout=60)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SANDBOXD_SOCKET": str(daemon.socket)}
    suites = ROOT / "tests" / "suites"
    checks = ["-m", "pytest", "-q", "-c", str(suites / "suites.ini"), str(suites / "newer_deepagents.py")]
    done = subprocess.run([place / "bin" / "python", *checks], env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-4000:]
    # The command line's own model for its tests asks for one write and ends.
    (tmp_path / ".deepagents").mkdir()
    (tmp_path / ".deepagents" / "config.toml").write_text(
        "[models.providers.scripted]\n"
        'class_path = "deepagents_code._testing_models:ToolCallingIntegrationChatModel"\n'
        'models = ["fake"]\n'
    )
    client.ensure_sandbox("research", "ada")
    asked = "DCA_TEST_WRITE_FILE=/workspace/memo/user/FACTS.md"
    words = ["--sandbox", "sandboxd", "--sandbox-id", "research", "--model", "scripted:fake", "--no-mcp", "-n", asked]
    done = subprocess.run(
        [place / "bin" / "dcode", *words], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert client.read_memo("ada", "FACTS.md", scope="user").text == "auto-approved"


def test_no_extra_brings_a_copyleft_licence() -> None:
    if not environment.is_up_to_date("suites"):
        pytest.fail("cannot read the licences: run `make environment-suites`", pytrace=False)
    (packages,) = environment.SUITES_VENV.glob("lib/python*/site-packages")
    installed = list(distributions(path=[str(packages)]))
    assert problems(installed, REVIEWED) == []
    required = {normalised(name) for name in _needed_by_extras(packages)}
    assert "bashlex" not in required
    assert {"anthropic", "deepagents", "inspect-ai", "langgraph", "openai-agents"} <= required


def _needed_by_extras(packages: Path) -> set[str]:
    """Return the names of every package that an extra needs, directly or not."""
    by_name = {normalised(one.name): one for one in distributions(path=[str(packages)])}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pending = [_name(requirement) for group in extras.values() for requirement in group]
    found: set[str] = set()
    while pending:
        name = pending.pop()
        if name not in found and name in by_name:
            found.add(name)
            requires = by_name[name].requires or []
            pending += [_name(requirement) for requirement in requires if "extra ==" not in requirement]
    return found


def _name(requirement: str) -> str:
    return normalised(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
