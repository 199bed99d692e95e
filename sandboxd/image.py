"""The names of the agent images, which are hashes of their inputs: the default image and its variants.

The inputs are the files of the top-level `images/`, reached through `sandboxd/images`: a link in a checkout, a
copied directory in an installed package, so both compute the same name. A variant is the default image with the
packages of one more list, `images/variants/NAME.txt`. This module never builds an image or calls an engine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from sandboxd.errors import InvalidRequest

REPOSITORY = "sandboxd-agent"
DEFAULT = "default"
"""What the default image is called beside its variants. Requests leave the image out instead."""
HOST_IMAGE = "host"
HASH_LABEL = "sandboxd.image.inputs"
INPUTS = Path(__file__).parent / "images"
_HASH_CHARS = 12


def variants(directory: Path = INPUTS) -> tuple[str, ...]:
    """Return the names of the variants, in order."""
    return tuple(sorted(path.stem for path in (directory / "variants").glob("[a-z]*.txt")))


def inputs_hash(directory: Path = INPUTS, variant: str | None = None) -> str:
    """Return the SHA-256 of every input's name and bytes; modes, times and hidden files do not count.

    The list of a variant is an input of that variant only.
    """
    names = sorted(p.name for p in directory.iterdir() if p.is_file() and not p.name.startswith("."))
    if not names:
        raise FileNotFoundError(f"cannot name the agent image: no inputs in {directory}")
    if variant is not None:
        names.append(f"variants/{variant}.txt")
    digest = hashlib.sha256()
    for name in names:
        content = (directory / name).read_bytes()
        # Lengths first: moving bytes from one file to the next must not give the same hash.
        digest.update(f"{len(name.encode())}:{len(content)}:{name}".encode())
        digest.update(content)
    return digest.hexdigest()


def default_image(engine: str = "docker") -> str:
    """Return the tag that `sandboxd image build` gives to the image; bubblewrap shows the host's own system instead."""
    return HOST_IMAGE if engine == "bubblewrap" else f"{REPOSITORY}:{inputs_hash()[:_HASH_CHARS]}"


def variant_image(variant: str) -> str:
    """Return the tag that `sandboxd image build VARIANT` gives to the image."""
    return f"{REPOSITORY}:{variant}-{inputs_hash(variant=variant)[:_HASH_CHARS]}"


def resolve_image(name: str | None, engine: str) -> str:
    """Return the engine's name of an image: of the default image, of this version's variant, or the name itself."""
    if name is None:
        return default_image(engine)
    if name not in variants():
        return name
    if engine == "bubblewrap":
        raise InvalidRequest(
            f"cannot use the image {name!r} with bubblewrap, which shows the host's own programs: install the packages "
            f'of `images/variants/{name}.txt` on the host and leave the image out (or name it "{HOST_IMAGE}"), '
            "or serve with Docker"
        )
    return variant_image(name)


def image_name(tag: str) -> str | None:
    """Return what a tag is called here: `default` or a variant, of any version; None if it is another image."""
    repository, _, version = tag.removeprefix("localhost/").partition(":")  # Podman's prefix for what it built
    if repository != REPOSITORY:
        return None
    variant, _, _ = version.rpartition("-")
    return variant or DEFAULT


def is_same_image(one: str, other: str) -> bool:
    """Return whether two tags are the same image, perhaps of two versions of sandboxd."""
    name = image_name(one)
    return one == other or (name not in (None, DEFAULT) and name == image_name(other))


def build_command(tag: str) -> str | None:
    """Return the command that builds this tag; None if this version cannot build it."""
    if tag == default_image():
        return "sandboxd image build"
    name = image_name(tag)
    return f"sandboxd image build {name}" if name in variants() and tag == variant_image(str(name)) else None
