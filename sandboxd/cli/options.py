"""Options that many commands share, spelled the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Tenant = Annotated[str, typer.Option("--tenant", "-t", envvar="SANDBOXD_TENANT", help="Whose sandboxes.")]
Socket = Annotated[
    Path | None, typer.Option("--socket", help="The daemon's socket, instead of SANDBOXD_SOCKET or the default.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Session = Annotated[str, typer.Argument(help="The session whose sandbox it is.")]
