"""`image`: the agent images in the container engine. It talks to the engine only; no daemon is needed."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from sandboxd.cli.options import Json
from sandboxd.cli.output import fail, print_json, print_line, print_table
from sandboxd.errors import SandboxdError
from sandboxd.image import DEFAULT, variants
from sandboxd.progress import SetupError

app = typer.Typer(
    no_args_is_help=True,
    help="The images that sandboxes on Docker or Podman are made from. bubblewrap does not need one.\n\n"
    "Example: sandboxd image build",
)


class From(StrEnum):
    AUTO = "auto"
    REGISTRY = "registry"
    PACKAGES = "packages"


@app.command("build")
def build(
    name: Annotated[
        str | None, typer.Argument(help="A variant: dev or interpreter. The default image without a name.")
    ] = None,
    source: Annotated[
        From,
        typer.Option(
            "--from",
            help="registry: from its Dockerfile. packages: from Debian packages, as root or with mmdebstrap. "
            "auto: packages where that works and the base image is not in the engine.",
        ),
    ] = From.AUTO,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build the image again, to get newer packages.")] = False,
    json: Json = False,
) -> None:
    """Build the default image or a variant unless the engine has it. Prints its tag; progress goes to stderr.

    The tag is a hash of the image's inputs, so a new version of sandboxd may need a new image. Sandboxes choose a
    variant by its name: `sandboxd create demo --image interpreter`.

    Example: sandboxd image build interpreter
    """
    if name is not None and name not in variants():
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(variants())}", param_hint="NAME")
    try:
        tag = build_image(name, source, rebuild=rebuild)
    except SetupError as error:
        fail(error, json, next_step=f"Next: {error.advice}" if error.advice else "")
    except SandboxdError as error:
        fail(error, json)
    if json:
        print_json({"image": tag})
    else:
        print_line(tag)


@app.command("ls")
def ls(json: Json = False) -> None:
    """List the agent images: `current` ones are used for new sandboxes, `other` ones belong to other versions.

    Example: sandboxd image ls
    """
    from sandboxd.engine.docker.image_builder import open_builder

    try:
        with open_builder() as builder:
            images = builder.images()
    except SandboxdError as error:
        fail(error, json)
    built = {image.name for image in images if image.is_current}
    missing = [name for name in (DEFAULT, *variants()) if name not in built]
    if json:
        print_json({"items": [asdict(image) for image in images], "not_built": missing})
        return
    rows = [
        (
            image.name,
            image.tag,
            "current" if image.is_current else "other",
            f"{image.size_mb} MB",
            image.created_at.isoformat(timespec="seconds"),
        )
        for image in images
    ]
    rows += [(name, "", "not built", "", "") for name in missing]
    print_table(("name", "image", "state", "size", "created"), rows)


def build_image(variant: str | None = None, source: From = From.AUTO, *, rebuild: bool = False) -> str:
    """Build the default image or a variant in this host's engine, with progress on stderr; return its tag."""
    from sandboxd.engine.docker.image_builder import open_builder

    with redirect_stdout(sys.stderr), open_builder() as builder:
        return builder.ensure(variant, source.value, rebuild=rebuild)
