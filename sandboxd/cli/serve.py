"""`serve`: run the daemon in the foreground. Commands that need no daemon read their settings here too."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from memo.errors import MemoError
from sandboxd.cli.options import Json
from sandboxd.cli.output import fail
from sandboxd.errors import EngineRefused, SandboxdError
from sandboxd.progress import SetupError

if TYPE_CHECKING:
    from sandboxd.settings import Settings

DataOption = Annotated[Path | None, typer.Option("--data", readable=False, help="The data directory.")]
EngineOption = Annotated[str | None, typer.Option("--engine", help="auto, docker or bubblewrap.")]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Where memory is kept: sqlite:///FILE, file:///DIRECTORY, memory:// (lost when the daemon stops) or "
        "python:MODULE:FACTORY.",
    ),
]


def serve(
    data: DataOption = None,
    socket: Annotated[Path | None, typer.Option(readable=False, help="The unix socket to listen on.")] = None,
    tcp: Annotated[str | None, typer.Option(help="HOST:PORT to listen on as well; requires --token-file.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(readable=False, help="A file whose first line is the token of TCP clients.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(readable=False, help="The TCP listener's certificate (PEM); needs --tls-key.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(readable=False, help="The private key of --tls-cert (PEM, without a password).")
    ] = None,
    engine: EngineOption = None,
    store: StoreOption = None,
    image: Annotated[str | None, typer.Option(help="The image of sandboxes that do not name one.")] = None,
    build_image: Annotated[
        bool | None,
        typer.Option("--build-image", help="Build the image first if the engine does not have it."),
    ] = None,
    pool: Annotated[int | None, typer.Option(help="How many sandboxes to keep warm; 0 for none.")] = None,
    json: Json = False,
) -> None:
    """Run the daemon until Ctrl-C or SIGTERM. Prints one line of JSON when it is ready, with or without --json.

    Every option is also a variable, SANDBOXD_POOL for --pool, and a key in sandboxd.toml, which is read from
    /etc/sandboxd, ~/.config/sandboxd and the working directory, or only from the file that SANDBOXD_CONFIG names.
    Settings without an option: engine_fallback, store_timeout_s, outbox, cache, blob_cache_mb, tokens,
    token_tables, token_download, runtime, pool_max,
    pool_shrink_s, nice, tmp_exec, skills, idle_timeout_s, max_lifetime_s, workspace_retention_s, workspaces_max_mb,
    start_timeout_s, drain_s, loop_stall_s, max_sandboxes, max_snapshots,
    snapshots_max_mb, snapshot_freeze_s, max_timeout_s, max_document_bytes, max_documents, max_calls,
    call_memory_mb, log_level, and the tables limits, wire, network, history, compaction and consolidation
    (SANDBOXD_LIMITS__MEMORY_MB).

    Example: sandboxd serve --data /srv/sandboxd --pool 4
    """
    settings = load_settings(
        json,
        data=data,
        socket=socket,
        tcp=tcp,
        token_file=token_file,
        tls_cert=tls_cert,
        tls_key=tls_key,
        engine=engine,
        store=store,
        image=image,
        build_image=build_image,
        pool=pool,
    )
    from sandboxd.daemon import preflight
    from sandboxd.daemon.process import main

    try:
        preflight.check_places(settings)
        _require_image(settings, preflight.missing_image(settings))
        main(settings)
    except SetupError as error:
        fail(error, json, next_step=f"Next: {error.advice}" if error.advice else "")
    except (SandboxdError, MemoError) as error:
        step = (
            "Give another --store."
            if settings.store
            else "Give another --data, which holds memory unless --store is given."
        )
        fail(error, json, next_step=step if isinstance(error, MemoError) and "; " not in str(error) else None)


def load_settings(as_json: bool, **options: Any) -> Settings:
    """Return the settings, in which these options take precedence; exit with one sentence if one is invalid."""
    from sandboxd.settings import read_settings

    try:
        settings = read_settings(**{name: value for name, value in options.items() if value is not None})
    except SandboxdError as error:
        fail(error, as_json)
    if settings.store_url.startswith("python:"):
        sys.path.append("")  # find modules in the working directory; last, so that they shadow nothing
    return settings


def _require_image(settings: Settings, missing: str | None) -> None:
    """Offer to build the image of new sandboxes if it is missing and one of ours: no other can be built here."""
    if missing is None:
        return
    from sandboxd.cli.image import build_image
    from sandboxd.image import build_command

    command = build_command(missing)
    if command is None:
        raise EngineRefused(f"cannot serve: image {missing} is not in the engine; pull it, or leave --image out")
    if settings.build_image or (_is_terminal() and _wants_build(missing)):
        build_image(settings.image)
        return
    what = f"the default image {missing}" if settings.image is None else f"image {missing}"
    raise EngineRefused(
        f"cannot serve: {what} is not in the engine; build it with `{command}`, or serve with --build-image"
    )


def _is_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def _wants_build(image: str) -> bool:
    return typer.confirm(
        f"The engine does not have {image}, the image of sandboxes. Build it now (a minute or two)?",
        default=True,
        err=True,
    )
