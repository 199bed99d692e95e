"""Checks made before the daemon starts: its data directory, token, certificate and image.

They change nothing. The daemon itself refuses the same settings, but later and in general terms; here the user has just
typed a command, and the error says what to type instead.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import anyio

from sandboxd.api.guard import read_token
from sandboxd.api.tls import read_tls
from sandboxd.engine.selection import select_engine
from sandboxd.errors import Conflict, HostIO
from sandboxd.image import resolve_image
from sandboxd.settings import Settings


def check_places(settings: Settings) -> None:
    """Raise a SandboxdError, with the next step, if the data directory, token file or certificate is unusable."""
    _check_data(settings.data)
    if settings.token_file is not None:
        read_token(settings.token_file)
    if settings.tls_cert is not None and settings.tls_key is not None:
        read_tls(settings.tls_cert, settings.tls_key)


def missing_image(settings: Settings) -> str | None:
    """Return the image of new sandboxes if the engine does not have it, else None.

    Raise a SandboxdError, with the next step, if no engine answers.
    """
    return anyio.run(_missing_image, settings)


async def _missing_image(settings: Settings) -> str | None:
    with tempfile.TemporaryDirectory(prefix="sandboxd-preflight-") as state:  # a daemon may be using the real one
        selection = await select_engine(settings.engine, Path(state), fallback=settings.engine_fallback)
        try:
            image = resolve_image(settings.image, selection.engine.name)
            return None if await selection.engine.has_image(image) else image
        finally:
            await selection.engine.aclose()


def _check_data(data: Path) -> None:
    nearest = next(path for path in (data, *data.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise HostIO(f"cannot use the data directory {data}: {nearest} is not a directory; give another --data")
    if nearest == data and (owner := data.stat().st_uid) != os.geteuid():
        raise Conflict(
            f"cannot use the data directory {data}: it belongs to uid {owner}, who could read everything in it; "
            f"run `chown {os.geteuid()} {data}` or give another --data"
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        verb = "write to" if nearest == data else "make"
        raise HostIO(f"cannot {verb} the data directory {data}: permission denied at {nearest}; give another --data")
