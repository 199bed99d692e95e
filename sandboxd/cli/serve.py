"""`serve`: the daemon itself, in the foreground."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memo.errors import MemoError
from sandboxd.cli.options import Json
from sandboxd.cli.output import WRONG_USAGE, fail
from sandboxd.errors import SandboxdError

if TYPE_CHECKING:
    from sandboxd.settings import Settings

DataOption = Annotated[Path | None, typer.Option("--data", help="The data directory.")]
EngineOption = Annotated[str | None, typer.Option("--engine", help="auto, docker or bubblewrap.")]


def serve(
    data: DataOption = None,
    socket: Annotated[Path | None, typer.Option(help="The unix socket to listen on.")] = None,
    tcp: Annotated[str | None, typer.Option(help="HOST:PORT to listen on, too; needs --token-file.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="A file with the token that TCP clients must send.")] = None,
    engine: EngineOption = None,
    store: Annotated[
        str | None, typer.Option(help="Where memory is kept: sqlite:///…, file:///…, postgresql://…")
    ] = None,
    image: Annotated[str | None, typer.Option(help="The image of a sandbox that names none.")] = None,
    pool: Annotated[int | None, typer.Option(help="How many sandboxes wait warm; 0: none.")] = None,
    json: Json = False,
) -> None:
    """Run the daemon until SIGTERM. Prints one line of JSON when it is ready, with or without --json.

    Every option is also SANDBOXD_<NAME> and a key in sandboxd.toml.

    Example: sandboxd serve --data /srv/sandboxd --pool 4
    """
    settings = load_settings(
        data=data, socket=socket, tcp=tcp, token_file=token_file, engine=engine, store=store, image=image, pool=pool
    )
    from sandboxd.daemon import main

    try:
        main(settings)
    except (SandboxdError, MemoError) as error:
        fail(error, json)


def load_settings(**given: Any) -> Settings:
    """Settings with these options in front; a wrong one is wrong usage."""
    from pydantic import ValidationError
    from pydantic_settings import SettingsError

    from sandboxd.settings import Settings

    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        for one in error.errors(include_url=False):
            where = ".".join(map(str, one["loc"]))
            message = one["msg"].removeprefix("Value error, ")
            typer.echo(f"cannot use these settings: {where + ': ' if where else ''}{message}", err=True)
        raise typer.Exit(WRONG_USAGE) from None
    except (SettingsError, ValueError) as error:
        typer.echo(f"cannot read the settings: {error}", err=True)
        raise typer.Exit(WRONG_USAGE) from None
