"""The built wheel, installed outside the checkout: with Docker and nothing else it serves, and builds its own image."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandboxd.image import inputs_hash, variants
from tests.running import docker

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("sandboxd", "memo", "images", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has the wheel. Its dependencies are those of the tests, found by their path."""
    tmp = tmp_path_factory.mktemp("wheel")
    source = tmp / "source"
    source.mkdir()
    for name in SHIPPED:  # a copy, because a build leaves its files in the tree
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp, source], check=True, capture_output=True, timeout=110)
    (wheel,) = tmp.glob("*.whl")
    environment = tmp / "environment"
    venv.create(environment, symlinks=True)
    subprocess.run(
        [*pip, "--python", environment / "bin" / "python", "install", "--no-deps", wheel], check=True, timeout=110
    )
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return environment


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    places = {"SANDBOXD_DATA": str(tmp_path / "data"), "SANDBOXD_SOCKET": str(tmp_path / "s.sock")}
    return {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "SANDBOXD_POOL": "0", **places}


@pytest.fixture
def other_image(installed: Path, agent_image: str) -> Iterator[str]:
    """The name of an image that the engine does not have: the wheel's inputs, changed so that building is quick."""
    (inputs,) = installed.glob("lib/python*/site-packages/sandboxd/images")
    before = (inputs / "bootstrap.sh").read_text()
    (inputs / "bootstrap.sh").write_text(
        f'id=$(docker create {agent_image} true) && docker export -o "$4" "$id" && docker rm "$id"\n'
    )
    tag = f"sandboxd-agent:{inputs_hash(inputs)[:12]}"
    try:
        yield tag
    finally:
        (inputs / "bootstrap.sh").write_text(before)
        if docker("images", "-q", tag):
            docker("rmi", tag)


def run(installed: Path, env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [installed / "bin" / "sandboxd", *words],
        cwd="/",
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


@contextmanager
def serving(installed: Path, env: dict[str, str], *words: str) -> Iterator[None]:
    """Run `sandboxd serve` until the block ends."""
    command = [str(installed / "bin" / "sandboxd"), "serve", *words]
    with subprocess.Popen(command, cwd="/", env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as daemon:
        try:
            assert_ready(daemon)
            yield
        finally:
            daemon.terminate()
            assert daemon.wait(60) == 0


def assert_ready(daemon: subprocess.Popen[bytes]) -> None:
    assert daemon.stdout is not None
    line = daemon.stdout.readline()
    assert json.loads(line)["event"] == "ready"


def test_the_wheel_serves_a_first_command(installed: Path, places: dict[str, str], agent_image: str) -> None:
    page = "from sandboxd.inspector.page_files import INDEX, PageFiles; assert PageFiles.read().find(INDEX)"
    probe = f"{page}; import sandboxd, sandboxd.image as i; print(sandboxd.__file__, i.default_image(), *i.variants())"
    where = subprocess.run(
        [installed / "bin" / "python", "-c", probe], cwd="/", env=places, capture_output=True, text=True, check=True
    )
    assert where.stdout.startswith(str(installed))
    assert where.stdout.split()[1] == agent_image, "a wheel and a checkout name the same image"
    assert where.stdout.split()[2:] == list(variants())
    assert run(installed, places, "--version").stdout.startswith("sandboxd ")
    assert run(installed, places, "image", "build").stdout == f"{agent_image}\n"
    with serving(installed, places):
        assert run(installed, places, "create", "first").stdout == "first\n"
        done = run(installed, places, "exec", "first", "id -un; cat /etc/os-release | grep -c debian")
        assert done.stdout.split()[0] == "agent", done.stderr
        assert run(installed, places, "rm", "first").returncode == 0


def test_serve_without_the_image_names_the_one_command(
    installed: Path, places: dict[str, str], other_image: str
) -> None:
    done = run(installed, places, "serve")
    assert done.returncode == 1
    assert done.stdout == ""
    said = f"cannot serve: the default image {other_image} is not in the engine; build it with `sandboxd image build`"
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


def test_serve_builds_the_image_with_build_image(installed: Path, places: dict[str, str], other_image: str) -> None:
    with serving(installed, places, "--build-image"):
        assert docker("images", "-q", other_image)
        assert run(installed, places, "create", "first").returncode == 0
        assert run(installed, places, "exec", "first", "echo $HOME").stdout == "/workspace\n"
        assert run(installed, places, "rm", "first").returncode == 0


@pytest.mark.parametrize("answer", ["y", "n"])
def test_serve_in_a_terminal_asks_first(installed: Path, places: dict[str, str], other_image: str, answer: str) -> None:
    keyboard, terminal = pty.openpty()
    try:
        command = [str(installed / "bin" / "sandboxd"), "serve"]
        env = {**places, "TERM": "dumb"}
        with subprocess.Popen(
            command, cwd="/", env=env, stdin=terminal, stdout=subprocess.PIPE, stderr=terminal
        ) as daemon:
            shown = b""
            while b"Build it now" not in shown:
                shown += os.read(keyboard, 4096)
            assert other_image.encode() in shown
            os.write(keyboard, f"{answer}\n".encode())
            if answer == "y":
                assert_ready(daemon)
                daemon.terminate()
            assert daemon.wait(60) == (0 if answer == "y" else 1)
        assert bool(docker("images", "-q", other_image)) == (answer == "y")
    finally:
        os.close(keyboard)
        os.close(terminal)
