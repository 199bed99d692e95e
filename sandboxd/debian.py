"""Debian and Ubuntu hosts: what they are, and installing packages on them.

Uses the machine's own apt configuration as it is; never adds a source or a key.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from sandboxd.progress import SetupError, run_step

_OS_RELEASE = Path("/etc/os-release")
_updated = False


def release() -> dict[str, str]:
    """Return the fields of os-release, empty on a host that has none."""
    if not _OS_RELEASE.exists():
        return {}
    fields = (line.partition("=") for line in _OS_RELEASE.read_text().splitlines())
    return {name: value.strip("\"'") for name, _, value in fields}


def is_debian() -> bool:
    fields = release()
    family = {fields.get("ID", ""), *fields.get("ID_LIKE", "").split()}
    return bool(family & {"debian", "ubuntu"}) and shutil.which("apt-get") is not None


def is_root() -> bool:
    return os.geteuid() == 0


def can_install() -> bool:
    return is_root() and is_debian()


def update() -> None:
    """Refresh apt's lists, once a run."""
    global _updated
    if not _updated:
        run_step(
            "apt-get update",
            ["apt-get", "update", "-q"],
            cannot="cannot refresh the package lists",
            advice="look at the lines above; apt's sources must be reachable",
        )
        _updated = True


def install(packages: Sequence[str]) -> None:
    """Install packages without their recommendations and without a question."""
    if not can_install():
        raise SetupError(
            f"cannot install {' '.join(packages)}: this needs root on Debian or Ubuntu",
            f"sudo apt-get install --no-install-recommends {' '.join(packages)}",
        )
    update()
    run_step(
        f"apt-get install {' '.join(packages)}",
        ["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages],
        cannot=f"cannot install {' '.join(packages)}",
        advice="look at the lines above; apt must be able to install these packages",
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
