"""The environment of the peers: a venv, a node_modules and an image with swe-rex's server, all under `build/bench`.

`python -m benchmarks.peers.environment` creates them, and does nothing if they are up to date. A part that cannot be
created is reported and left out: the benchmark runs without it. The product's own environment is never touched.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sandboxd import debian
from sandboxd.progress import SetupError, run_step, say
from scripts.verb import main

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PLACE = ROOT / "build" / "bench"
VENV = PLACE / "venv"
NODE_MODULES = PLACE / "node_modules"
REQUIREMENTS = HERE / "requirements.txt"
PACKAGE = HERE / "package.json"
SERVER_REPOSITORY = "sandboxd-bench-swe-rex"
# Programs that the process peers start; sandbox-runtime needs all three.
PROGRAMS = {"bwrap": "bubblewrap", "socat": "socat", "rg": "ripgrep"}


def python() -> Path:
    return VENV / "bin" / "python"


def server_image(base: str) -> str:
    """The image with swe-rex's server on top of our image; its name changes when either changes."""
    digest = hashlib.sha256(base.encode() + REQUIREMENTS.read_bytes()).hexdigest()
    return f"{SERVER_REPOSITORY}:{digest[:12]}"


def make_venv() -> None:
    stamp = VENV / "up-to-date"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted and python().exists():
        return
    make = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    run_step("making the peers' environment", make, cannot="cannot make the peers' environment")
    install = [str(python()), "-m", "pip", "install", "--disable-pip-version-check", "-r", str(REQUIREMENTS)]
    run_step("installing the peers", install, cannot="cannot install the peers")
    stamp.write_text(wanted)


def make_node_modules() -> None:
    stamp = NODE_MODULES / "up-to-date"
    wanted = hashlib.sha256(PACKAGE.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return
    if shutil.which("npm") is None:
        raise SetupError("cannot install sandbox-runtime: npm is not installed")
    shutil.copy(PACKAGE, PLACE / "package.json")
    install = ["npm", "install", "--prefix", str(PLACE), "--no-audit", "--no-fund"]
    run_step("installing sandbox-runtime", install, cannot="cannot install sandbox-runtime")
    stamp.write_text(wanted)


def install_programs() -> None:
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if not missing:
        return
    if not debian.can_install():
        raise SetupError(f"cannot install {', '.join(missing)}: not root on Debian or Ubuntu")
    debian.install(missing)


def make_server_image(base: str) -> None:
    """Build the image for swe-rex, which would otherwise download its server; our image has no network and no pip."""
    tag = server_image(base)
    if subprocess.run(["docker", "image", "inspect", tag], capture_output=True).returncode == 0:
        return
    version = _output(
        ["docker", "run", "--rm", base, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    )
    with tempfile.TemporaryDirectory(prefix="sandboxd-bench-") as name:
        context = Path(name)
        install = [str(python()), "-m", "pip", "install", "--quiet", "--target", str(context / "site")]
        install += ["--python-version", version, "--only-binary", ":all:", "-c", str(REQUIREMENTS), "swe-rex"]
        run_step("fetching swe-rex's server", install, cannot="cannot fetch swe-rex's server")
        (context / "Dockerfile").write_text(
            f"FROM {base}\nCOPY site /opt/swe-rex\nENV PYTHONPATH=/opt/swe-rex PATH=/opt/swe-rex/bin:$PATH\n"
            "USER root\nRUN sed -i '1s|.*|#!/usr/bin/python3|' /opt/swe-rex/bin/*\nUSER 10001:10001\n"
        )
        build = ["docker", "build", "-q", "-t", tag, str(context)]
        run_step("building swe-rex's image", build, cannot="cannot build swe-rex's image")


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SetupError(f"cannot run {command[0]} {command[1]}: {done.stderr.strip()[-200:]}")
    return done.stdout.strip()


def make(base: str) -> list[str]:
    """Create all parts; return a sentence for each that could not be created."""
    PLACE.mkdir(parents=True, exist_ok=True)
    problems = []
    for part in (make_venv, make_node_modules, install_programs, lambda: make_server_image(base)):
        try:
            part()
        except SetupError as error:
            problems.append(str(error))
            say(f"continuing without it: {error}")
    return problems


def _verb(_: Sequence[str]) -> int:
    from sandboxd.image import default_image

    make(os.environ.get("SANDBOXD_IMAGE") or default_image())
    return 0


if __name__ == "__main__":
    main(_verb)
