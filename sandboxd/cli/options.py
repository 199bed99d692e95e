"""Options that many commands share, spelled the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Tenant = Annotated[
    str, typer.Option("--tenant", "-t", envvar="SANDBOXD_TENANT", help="The tenant that the session or user is of.")
]
# Whether a path can be used is for the command to say, in a sentence of its own: hence readable=False here and below.
Socket = Annotated[
    Path | None,
    typer.Option("--socket", readable=False, help="The daemon's socket, instead of SANDBOXD_SOCKET or the default."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Session = Annotated[str, typer.Argument(help="The session whose sandbox it is.")]
