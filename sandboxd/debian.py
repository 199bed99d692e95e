"""Debian and Ubuntu hosts: identifies them, and installs packages on them.

Uses the machine's own apt configuration and leaves it as it was; never adds a source or a key.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sandboxd.progress import SetupError, run_step

_OS_RELEASE = Path("/etc/os-release")
_LOCK_PATIENCE_S = 120
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
    """Refresh apt's lists, once per run."""
    global _updated
    if not _updated:
        _refresh([])
        _updated = True


def install(packages: Sequence[str]) -> None:
    """Install packages without their recommendations and without a question."""
    _refuse_unless_possible(packages)
    update()
    _install(packages, [])


def install_from_backports(package: str) -> None:
    """Install one package from this release's backports, without adding them to the machine's sources.

    apt gets a source list, package lists and a cache of its own, all of which are gone afterwards.
    """
    _refuse_unless_possible([package])
    with tempfile.TemporaryDirectory(prefix="sandboxd-apt-") as name:
        work = Path(name)
        work.chmod(0o755)  # apt downloads as a user of its own
        for directory in ("lists/partial", "cache/archives/partial"):
            (work / directory).mkdir(parents=True)
        (work / "sources.list").write_text(backports())
        options = {
            "Dir::Etc::sourcelist": work / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": work / "lists",
            "Dir::Cache": work / "cache",
        }
        arguments = [word for option, value in options.items() for word in ("-o", f"{option}={value}")]
        _refresh(arguments)
        _install([package], arguments)


def backports() -> str:
    """Return a source list of the backports, on the server from which apt gets the release itself."""
    codename = release().get("VERSION_CODENAME", "")
    fields = "$(ORIGIN)|$(REPO_URI)|$(COMPONENT)"
    filters = ["Created-By: Packages", f"Release: {codename}"]
    command = ["apt-get", "indextargets", "--format", fields, *filters]
    entries = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    lines = ""
    for origin, uri, component in (entry.split("|") for entry in entries):
        keyring = Path(f"/usr/share/keyrings/{origin.lower()}-archive-keyring.gpg")
        if origin in {"Debian", "Ubuntu"}:  # a third party has no backports
            trust = f"[signed-by={keyring}] " if keyring.exists() else ""
            lines += f"deb {trust}{uri} {codename}-backports {component}\n"
    if not lines:
        raise SetupError(f"cannot find the backports of {codename}: apt has no source of {codename} itself")
    return lines


def _refuse_unless_possible(packages: Sequence[str]) -> None:
    if not can_install():
        raise SetupError(
            f"cannot install {' '.join(packages)}: this needs root on Debian or Ubuntu",
            f"sudo apt-get install --no-install-recommends {' '.join(packages)}",
        )


def _refresh(options: Sequence[str]) -> None:
    run_step(
        "apt-get update",
        ["apt-get", *options, "update", "-q"],
        cannot="cannot refresh the package lists",
        advice="look at the lines above; apt's sources must be reachable",
    )


def _install(packages: Sequence[str], options: Sequence[str]) -> None:
    patience = ["-o", f"DPkg::Lock::Timeout={_LOCK_PATIENCE_S}"]
    run_step(
        f"apt-get install {' '.join(packages)}",
        ["apt-get", *options, *patience, "install", "-q", "-y", "--no-install-recommends", *packages],
        cannot=f"cannot install {' '.join(packages)}",
        advice="look at the lines above; apt must be able to install these packages",
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
