"""Run a piece of Python as a user without privileges, with the product importable."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

UID = 10002
HANG_GUARD_S = 100
ROOT = Path(__file__).resolve().parents[1]


def run_as_ordinary_user(source: str) -> str:
    """Run this source with a private directory as its argument, and return what it printed."""
    python, environment = public_python(), ordinary_environment()
    probe = [python, "-c", "import sandboxd, anyio"]
    if subprocess.run(probe, user=UID, group=UID, extra_groups=[], cwd="/", env=environment, check=False).returncode:
        pytest.skip("the checkout is in a directory that other users may not read")
    home = Path(tempfile.mkdtemp(prefix="sandboxd-ordinary-"))
    try:
        os.chown(home, UID, UID)
        done = subprocess.run(
            [python, "-c", source, str(home / "state")],
            cwd="/",
            env={**environment, "HOME": str(home)},
            user=UID,
            group=UID,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=HANG_GUARD_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout
    finally:
        shutil.rmtree(home)


def ordinary_environment() -> dict[str, str]:
    return {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def public_python() -> str:
    """An interpreter of our version that every user may run; ours may be in a closed home directory."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, f"/usr/bin/python{version}", f"/usr/local/bin/python{version}"):
        probe = [candidate, "-c", "pass"]
        try:
            subprocess.run(probe, user=UID, group=UID, extra_groups=[], cwd="/", capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return candidate
    pytest.skip(f"no Python {version} that every user may run")
