"""The name of the default agent image, which is the hash of its inputs.

The inputs are the files of the top-level `images/`, reached through `sandboxd/images`: a link in a checkout, a
copied directory in an installed package, so both compute the same name. This module never builds an image or calls an
engine.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

REPOSITORY = "sandboxd-agent"
HOST_IMAGE = "host"
HASH_LABEL = "sandboxd.image.inputs"
INPUTS = Path(__file__).parent / "images"


def inputs_hash(directory: Path = INPUTS) -> str:
    """Return the SHA-256 of every input's name and bytes; modes, times and hidden files do not count."""
    names = sorted(p.name for p in directory.iterdir() if p.is_file() and not p.name.startswith("."))
    if not names:
        raise FileNotFoundError(f"cannot name the agent image: no inputs in {directory}")
    digest = hashlib.sha256()
    for name in names:
        content = (directory / name).read_bytes()
        # Lengths first: moving bytes from one file to the next must not give the same hash.
        digest.update(f"{len(name.encode())}:{len(content)}:{name}".encode())
        digest.update(content)
    return digest.hexdigest()


def default_image(engine: str = "docker") -> str:
    """Return the tag that `sandboxd image build` gives to the image; bubblewrap shows the host's own system instead."""
    return HOST_IMAGE if engine == "bubblewrap" else f"{REPOSITORY}:{inputs_hash()[:12]}"
