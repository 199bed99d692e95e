"""The environments: `.venv` with the pinned requirements and this package, editable; and `.venv-suites`.

Each is brought up to date only when its requirement files or pyproject.toml change; the machine's own pip configuration
decides where packages come from. Usage: `environment run`, `environment dev` (adds the tools) or `environment suites`
(what tests/suites runs: the packages of other projects, whose pins exclude some of ours, and of ours only what the
client needs).
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
SUITES_VENV = ROOT / ".venv-suites"
REQUIREMENTS = {"run": "requirements.txt", "dev": "requirements-dev.txt", "suites": "requirements-suites.txt"}


def wanted_stamp(kind: str) -> str:
    """Return the kind and a hash of everything that determines the environment's contents."""
    inputs = {"pyproject.toml"} if kind == "suites" else {"requirements.txt", "pyproject.toml"}
    digest = hashlib.sha256()
    for name in sorted({*inputs, REQUIREMENTS[kind]}):
        digest.update((ROOT / name).read_bytes())
    return f"{kind} {digest.hexdigest()}"


def is_up_to_date(kind: str) -> bool:
    # The dev environment includes the run environment.
    good = {wanted_stamp(kind), wanted_stamp("dev" if kind == "run" else kind)}
    stamp = _stamp(_venv(kind))
    return stamp.exists() and stamp.read_text() in good and _works(_venv(kind))


def build(kind: str) -> None:
    """Create or update the environment of this kind; do nothing if it is up to date."""
    with _one_at_a_time():
        if is_up_to_date(kind):
            return
        venv = _venv(kind)
        stamp = _stamp(venv)
        if kind == "run" and stamp.exists() and stamp.read_text().startswith("dev"):
            kind = "dev"  # an update keeps the installed tools
        if not _works(venv):
            _create(venv)
        stamp.unlink(missing_ok=True)
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check"]
        advice = "read the output above; pip uses this machine's own configuration (`pip config list`)"
        run_step(
            f"installing {REQUIREMENTS[kind]}",
            [*pip, "-r", str(ROOT / REQUIREMENTS[kind])],
            cannot="cannot install the requirements",
            advice=advice,
        )
        run_step(
            f"installing sandboxd into {venv.name}",
            [*pip, "--no-deps", "-e", str(ROOT)],
            cannot="cannot install sandboxd",
            advice=advice,
        )
        stamp.write_text(wanted_stamp(kind))


def _venv(kind: str) -> Path:
    return SUITES_VENV if kind == "suites" else VENV


def _stamp(venv: Path) -> Path:
    return venv / "up-to-date"


def _create(venv: Path) -> None:
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True).returncode != 0:
        package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
        if not debian.can_install():
            advice = f"sudo apt-get install {package}" if debian.is_debian() else "install Python's ensurepip module"
            raise SetupError(f"cannot make {venv.name}: {sys.executable} has no venv module", advice)
        debian.install([package])
    run_step(
        f"making {venv.name} with Python {sys.version.split()[0]}",
        [sys.executable, "-m", "venv", "--clear", str(venv)],
        cannot=f"cannot make {venv.name}",
        advice=f"free some disk space or remove {venv.name}, then try again",
    )


def _works(venv: Path) -> bool:
    """Return whether the environment has pip and a recent Python. A link to a removed Python counts as missing."""
    python = venv / "bin" / "python"
    probe = "import pip, sys; sys.exit(sys.version_info < (3, 11))"
    return python.exists() and subprocess.run([python, "-c", probe], capture_output=True).returncode == 0


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Lock the checkout: two makes must not install into one environment at once."""
    directory = os.open(ROOT, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _verb(arguments: Sequence[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in REQUIREMENTS:
        raise SetupError("cannot set up an environment: unknown kind", "give `run`, `dev` or `suites`")
    build(arguments[0])
    return 0


if __name__ == "__main__":
    main(_verb)
