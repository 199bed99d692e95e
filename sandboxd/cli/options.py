"""Options that many commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Tenant = Annotated[
    str, typer.Option("--tenant", "-t", envvar="SANDBOXD_TENANT", help="The tenant of the session or user.")
]
# The command checks the path itself, for a better error: hence readable=False here and below.
Socket = Annotated[
    Path | None,
    typer.Option("--socket", readable=False, help="The daemon's socket, instead of SANDBOXD_SOCKET or the default."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Session = Annotated[str, typer.Argument(help="The session of the sandbox.")]
