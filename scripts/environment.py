"""The environment: `.venv` with the pinned requirements and this package, editable.

It is brought up to date only when the requirement files or pyproject.toml change; the machine's own pip configuration
decides where packages come from. Usage: `environment run` or `environment dev` (adds the tools).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sandboxd import debian
from sandboxd.progress import SetupError, run_step
from scripts.verb import main

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "up-to-date"
REQUIREMENTS = {"run": "requirements.txt", "dev": "requirements-dev.txt"}


def wanted_stamps() -> dict[str, str]:
    """Return, for each kind, the hash of all that decides the environment's contents."""
    stamps = {}
    for kind, requirements in REQUIREMENTS.items():
        digest = hashlib.sha256()
        for name in sorted({"requirements.txt", requirements, "pyproject.toml"}):
            digest.update((ROOT / name).read_bytes())
        stamps[kind] = f"{kind} {digest.hexdigest()}"
    return stamps


def is_up_to_date(kind: str) -> bool:
    stamps = wanted_stamps()
    # The dev environment holds all of the run environment.
    good = {stamps[kind], stamps["dev"]}
    return STAMP.exists() and STAMP.read_text() in good and _works()


def build(kind: str) -> None:
    """Make or update the environment of this kind; one that is up to date costs nothing."""
    with _one_at_a_time():
        if is_up_to_date(kind):
            return
        if kind == "run" and STAMP.exists() and STAMP.read_text().startswith("dev"):
            kind = "dev"  # never take the tools away from somebody who has them
        if not _works():
            _create()
        STAMP.unlink(missing_ok=True)
        pip = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
        advice = "look at the lines above; pip uses this machine's own configuration (`pip config list`)"
        run_step(
            f"installing {REQUIREMENTS[kind]}",
            [*pip, "-r", str(ROOT / REQUIREMENTS[kind])],
            cannot="cannot install the requirements",
            advice=advice,
        )
        run_step(
            "installing sandboxd into .venv",
            [*pip, "--no-deps", "-e", str(ROOT)],
            cannot="cannot install sandboxd",
            advice=advice,
        )
        STAMP.write_text(wanted_stamps()[kind])


def _create() -> None:
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True).returncode != 0:
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        if not debian.can_install():
            advice = f"sudo apt-get install {package}" if debian.is_debian() else "install Python's ensurepip module"
            raise SetupError(f"cannot make .venv: {sys.executable} has no venv module", advice)
        debian.install([package])
    run_step(
        f"making .venv with Python {sys.version.split()[0]}",
        [sys.executable, "-m", "venv", "--clear", str(VENV)],
        cannot="cannot make .venv",
        advice="free some disk space or remove .venv, then try again",
    )


def _works() -> bool:
    """Whether .venv has a Python that is new enough, and a pip. A link to a Python since removed does not exist."""
    python = VENV / "bin" / "python"
    probe = "import pip, sys; sys.exit(sys.version_info < (3, 11))"
    return python.exists() and subprocess.run([python, "-c", probe], capture_output=True).returncode == 0


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold the checkout: two makes at once must not install into one environment."""
    directory = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _verb(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in REQUIREMENTS:
        raise SetupError("cannot tell which environment is meant", "say `run` or `dev`")
    build(arguments[0])
    return 0


if __name__ == "__main__":
    main(_verb)
