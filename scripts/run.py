"""`make run`: find an engine, then replace this process with the daemon, which builds its own image.

Without a container engine the daemon runs on bubblewrap, which isolates less well, and a message says so. Engine, image
and socket come from the settings, as in the daemon itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sandboxd import debian
from sandboxd.errors import InvalidRequest
from sandboxd.places import default_socket
from sandboxd.progress import SetupError, say
from sandboxd.settings import read_settings
from scripts import engine
from scripts.verb import main

_WHAT_NEXT = """
In another terminal, once the daemon reports that it is ready:

    .venv/bin/sandboxd create{option} --user ada first
    .venv/bin/sandboxd exec{option} first 'echo "hello from $(id -un)"; ls memo'
    curl --unix-socket {socket} http://localhost/v1/tenants/default/sandboxes

Ctrl-C stops the daemon; memory stays.
"""


def prepare() -> dict[str, str]:
    """Prepare what the settings require; return the environment variables that the daemon needs in addition."""
    try:
        settings = read_settings()
    except InvalidRequest as error:
        raise SetupError(str(error), "correct SANDBOXD_* or sandboxd.toml") from None
    extra = {}
    if settings.engine != "bubblewrap":
        try:
            found = engine.ensure()
        except SetupError as error:
            if settings.engine == "docker" or "DOCKER_HOST" in os.environ:
                raise  # the settings name this engine; do not silently use a weaker one
            _require_bubblewrap(error)
            extra["SANDBOXD_ENGINE"] = "bubblewrap"
        else:
            say(f"engine: {found}")
            extra["DOCKER_HOST"] = found.address
            extra["SANDBOXD_BUILD_IMAGE"] = "true"
    option = "" if settings.socket == default_socket() else f" --socket {settings.socket}"
    print(_WHAT_NEXT.format(socket=settings.socket, option=option), flush=True)
    return extra


def _require_bubblewrap(why: SetupError) -> None:
    if shutil.which("bwrap") is None and debian.can_install():
        debian.install(["bubblewrap"])
    probe = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]
    if shutil.which("bwrap") is None or subprocess.run(probe, capture_output=True).returncode != 0:
        raise why
    say(f"continuing with bubblewrap, which isolates less well than a container engine ({why})")


def _verb(arguments: Sequence[str]) -> int:
    environment = {**os.environ, **prepare()}
    daemon = str(Path(sys.executable).parent / "sandboxd")
    # Replaces this process, so that signals reach the daemon itself.
    return os.execve(daemon, [daemon, "serve", *arguments], environment)  # noqa: S606  a fixed program, no shell


if __name__ == "__main__":
    main(_verb)
