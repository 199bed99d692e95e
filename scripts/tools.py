"""`make tools`: install the programs that tests need besides the engine, as root on Debian or Ubuntu.

Without a required program the suite cannot run. An optional one is another engine for the conformance suite, or a
browser; if it cannot be installed, its tests are skipped with the reason.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence

from sandboxd import debian
from sandboxd.progress import SetupError, say
from scripts.verb import main

PACKAGE_OF = {
    "bwrap": "bubblewrap",
    "mkfs.ext4": "e2fsprogs",
    "setpriv": "util-linux",
    "docker": "docker.io",
    "curl": "curl",
    "git": "git",
}
_OPTIONAL: dict[str, Callable[[], None]] = {
    "chromium": lambda: debian.install(["chromium"]),
    "podman": lambda: debian.install(["podman"]),
    # Debian 12's own runsc does not run under a current kernel.
    "runsc": lambda: debian.install_from_backports("runsc"),
}


def find_program(program: str) -> str | None:
    """Return the path at which root would find this program."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/local/sbin:/usr/sbin:/sbin")


def missing() -> list[str]:
    """Return the packages whose program is not on the PATH of root."""
    return [package for program, package in PACKAGE_OF.items() if find_program(program) is None]


def install_optional(installs: Mapping[str, Callable[[], None]] = _OPTIONAL) -> list[tuple[str, str]]:
    """Install what is missing, as far as possible. Return what could not be installed, and why."""
    refused = []
    for program, install in installs.items():
        if find_program(program) is None:
            try:
                install()
            except SetupError as error:
                refused.append((program, str(error)))
    return refused


def _verb(_: Sequence[str]) -> int:
    if packages := missing():
        debian.install(packages)
    for program, reason in install_optional():
        say(f"without {program}, whose tests are skipped: {reason}")
    found = [program for program in (*PACKAGE_OF, *_OPTIONAL) if find_program(program) is not None]
    say(f"tools: {', '.join(found)}")
    return 0


if __name__ == "__main__":
    main(_verb)
