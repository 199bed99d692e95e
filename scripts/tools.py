"""`make tools`: the programs that tests start beside the engine; as root on Debian and Ubuntu they are installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from sandboxd import debian
from sandboxd.progress import say
from scripts.verb import main

PACKAGE_OF = {
    "bwrap": "bubblewrap",
    "mkfs.ext4": "e2fsprogs",
    "setpriv": "util-linux",
    "docker": "docker.io",
    "curl": "curl",
    "git": "git",
}


def missing() -> list[str]:
    """Return the packages whose program is not on the PATH of root."""
    path = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/local/sbin:/usr/sbin:/sbin"
    return [package for program, package in PACKAGE_OF.items() if shutil.which(program, path=path) is None]


def _verb(_: Sequence[str]) -> int:
    if packages := missing():
        debian.install(packages)
    say(f"tools: {', '.join(PACKAGE_OF)}")
    return 0


if __name__ == "__main__":
    main(_verb)
