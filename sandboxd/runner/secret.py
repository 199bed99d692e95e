"""The secret of one sandbox: created by the daemon, read once by the runner, removed before an agent runs.

Its file is in the run directory only from before the launch until the first greeting. The secret is never logged and
never written a second time.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

SECRET_BYTES = 32
SECRET_NAME = "secret"  # noqa: S105 - the name of the file, not its content


def mint_secret() -> str:
    return secrets.token_hex(SECRET_BYTES)


def publish_secret(run_dir: Path, secret: str, uid: int, gid: int) -> None:
    """Put the secret where the runner will read it, readable by its uid only."""
    path = run_dir / SECRET_NAME
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
    try:
        if (uid, gid) != (os.geteuid(), os.getegid()):
            os.fchown(fd, uid, gid)
        os.write(fd, secret.encode("ascii"))
    finally:
        os.close(fd)


def withdraw_secret(run_dir: Path) -> None:
    (run_dir / SECRET_NAME).unlink(missing_ok=True)
